#version 450
// The pixels of regions of one shape, channel by channel: one workgroup a region, one invocation four texels of each
// eighth row. DOWN and ACROSS, if defined: each texel shown is the mean of this many of the level, halves up.

layout(local_size_x = 8, local_size_y = 8) in;

struct Region {
    uint row;
    uint column;
    uint slot;  // place of its pixels
    uint unused;
};

layout(std430, binding = 0) readonly restrict buffer Regions { Region regions[]; };
layout(std430, binding = 1) writeonly restrict buffer Pixels { uint pixels[]; };  // [slot][channel][row][8]
layout(r32ui, binding = 0) readonly restrict uniform uimage2D level;

uint channel(uint shift, uvec4 texels) {
    uvec4 values = (texels >> shift) & 255u;
    return values.x | (values.y << 8) | (values.z << 16) | (values.w << 24);
}

#if defined(DOWN) && defined(ACROSS)
// Two sums of 16 bits in each word, which at most eight bytes do not fill.
uint shown(ivec2 at, ivec2 last) {
    uint even = 0u, odd = 0u;
    for (int down = 0; down < DOWN; ++down) {
        for (int across = 0; across < ACROSS; ++across) {
            uint texel = imageLoad(level, min(at * ivec2(ACROSS, DOWN) + ivec2(across, down), last)).r;
            even += texel & 0xff00ffu;
            odd += (texel >> 8) & 0xff00ffu;
        }
    }
    const uint half_of_all = uint(DOWN * ACROSS / 2) * 0x10001u;
    even = ((even + half_of_all) / uint(DOWN * ACROSS)) & 0xff00ffu;
    odd = ((odd + half_of_all) / uint(DOWN * ACROSS)) & 0xff00ffu;
    return even | (odd << 8);
}
#else
uint shown(ivec2 at, ivec2 last) {
    return imageLoad(level, min(at, last)).r;
}
#endif

void main() {
    Region region = regions[gl_WorkGroupID.x];
    ivec2 last = imageSize(level).xy - 1;
    int column = int(region.column * 32u + gl_LocalInvocationID.x * 4u);
    for (uint row = gl_LocalInvocationID.y; row < 32u; row += 8u) {
        int line = int(region.row * 32u + row);
        uvec4 texels;
        texels.x = shown(ivec2(column, line), last);
        texels.y = shown(ivec2(column + 1, line), last);
        texels.z = shown(ivec2(column + 2, line), last);
        texels.w = shown(ivec2(column + 3, line), last);
        uint place = region.slot * 768u + row * 8u + gl_LocalInvocationID.x;
        pixels[place] = channel(0u, texels);
        pixels[place + 256u] = channel(8u, texels);
        pixels[place + 512u] = channel(16u, texels);
    }
}
