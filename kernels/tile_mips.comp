#version 450
// All levels of dirty tiles from their texels in the ring: one workgroup a tile, one invocation 8×8 texels.
//
// The ring is read as four texels at a time, and texels are stored as whole words: in software OpenGL each store costs,
// so level 0 is stored here (STORE_LEVEL_0) only if no plain copy brings it into the texture faster.

layout(local_size_x = 4, local_size_y = 4) in;

struct Tile {
    uint row;
    uint column;
    uint base;    // of its first texel, in fours
    uint stride;  // of a row of texels, in fours
};

layout(std430, binding = 0) readonly restrict buffer Tiles { Tile tiles[]; };
layout(binding = 0) uniform usamplerBuffer ring;
#ifdef LAYERS  // of an array; a tile's is in the upper half of its row
#define IMAGE uimage2DArray
#define PLACE(column, line) ivec3(column, line, layer)
#else
#define IMAGE uimage2D
#define PLACE(column, line) ivec2(column, line)
#endif
#ifdef STORE_LEVEL_0
layout(r32ui, binding = 0) writeonly restrict uniform IMAGE level0;
#endif
layout(r32ui, binding = 1) writeonly restrict uniform IMAGE level1;
layout(r32ui, binding = 2) writeonly restrict uniform IMAGE level2;
layout(r32ui, binding = 3) writeonly restrict uniform IMAGE level3;
layout(r32ui, binding = 4) writeonly restrict uniform IMAGE level4;
layout(r32ui, binding = 5) writeonly restrict uniform IMAGE level5;

shared uint corners[16];

uvec2 halves(uint texel) { return uvec2(texel & 0xff00ffu, (texel >> 8) & 0xff00ffu); }

// (a + b + c + d + 2) >> 2 in each of four bytes.
uint box(uint a, uint b, uint c, uint d) {
    uvec2 sum = halves(a) + halves(b) + halves(c) + halves(d) + uvec2(0x20002u);
    sum = (sum >> 2) & 0xff00ffu;
    return sum.x | (sum.y << 8);
}

#define STORE(level, column, line, texel) imageStore(level, PLACE(column, line), uvec4(texel, 0u, 0u, 0u))

int stride;
int layer;

void store_row(ivec2 at, uvec4 row) {
#ifdef STORE_LEVEL_0
    STORE(level0, at.x, at.y, row.x);
    STORE(level0, at.x + 1, at.y, row.y);
    STORE(level0, at.x + 2, at.y, row.z);
    STORE(level0, at.x + 3, at.y, row.w);
#endif
}

// 4×4 texels of level 0 that begin at `base`; `at` is their place in level 2, which is returned.
uint quarter(int base, ivec2 at) {
    uvec4 a = texelFetch(ring, base);
    uvec4 b = texelFetch(ring, base + stride);
    uvec4 c = texelFetch(ring, base + 2 * stride);
    uvec4 d = texelFetch(ring, base + 3 * stride);
    store_row(at * 4, a);
    store_row(at * 4 + ivec2(0, 1), b);
    store_row(at * 4 + ivec2(0, 2), c);
    store_row(at * 4 + ivec2(0, 3), d);
    uint e = box(a.x, a.y, b.x, b.y);
    uint f = box(a.z, a.w, b.z, b.w);
    uint g = box(c.x, c.y, d.x, d.y);
    uint h = box(c.z, c.w, d.z, d.w);
    ivec2 fine = at * 2;
    STORE(level1, fine.x, fine.y, e);
    STORE(level1, fine.x + 1, fine.y, f);
    STORE(level1, fine.x, fine.y + 1, g);
    STORE(level1, fine.x + 1, fine.y + 1, h);
    uint texel = box(e, f, g, h);
    STORE(level2, at.x, at.y, texel);
    return texel;
}

void main() {
    Tile tile = tiles[gl_WorkGroupID.x];
    ivec2 place = ivec2(tile.column, tile.row & 0xffffu);
    layer = int(tile.row >> 16);
    ivec2 me = ivec2(gl_LocalInvocationID.xy);
    stride = int(tile.stride);

    int base = int(tile.base) + 8 * me.y * stride + 2 * me.x;
    ivec2 at = place * 8 + me * 2;
    uint texel = box(quarter(base, at), quarter(base + 1, at + ivec2(1, 0)),
                     quarter(base + 4 * stride, at + ivec2(0, 1)), quarter(base + 4 * stride + 1, at + ivec2(1, 1)));
    STORE(level3, place.x * 4 + me.x, place.y * 4 + me.y, texel);

    corners[gl_LocalInvocationIndex] = texel;
    barrier();
    bool mine = me.x < 2 && me.y < 2;
    if (mine) {
        int first = 8 * me.y + 2 * me.x;
        texel = box(corners[first], corners[first + 1], corners[first + 4], corners[first + 5]);
        STORE(level4, place.x * 2 + me.x, place.y * 2 + me.y, texel);
    }
    barrier();
    if (mine) {
        corners[2 * me.y + me.x] = texel;
    }
    barrier();
    if (gl_LocalInvocationIndex == 0u) {
        STORE(level5, place.x, place.y, box(corners[0], corners[1], corners[2], corners[3]));
    }
}
