#version 450
// The pixels of regions of one level, channel by channel: one workgroup a region, one invocation four texels of each
// eighth row.

layout(local_size_x = 8, local_size_y = 8) in;

struct Region {
    uint row;
    uint column;
    uint slot;  // where its pixels go
    uint unused;
};

layout(std430, binding = 0) readonly restrict buffer Regions { Region regions[]; };
layout(std430, binding = 1) writeonly restrict buffer Pixels { uint pixels[]; };  // [slot][channel][row][8]
layout(r32ui, binding = 0) readonly restrict uniform uimage2D level;

uint channel(uint shift, uvec4 texels) {
    uvec4 values = (texels >> shift) & 255u;
    return values.x | (values.y << 8) | (values.z << 16) | (values.w << 24);
}

void main() {
    Region region = regions[gl_WorkGroupID.x];
    ivec2 last = imageSize(level).xy - 1;
    int column = int(region.column * 32u + gl_LocalInvocationID.x * 4u);
    ivec4 columns = min(ivec4(column, column + 1, column + 2, column + 3), last.x);
    for (uint row = gl_LocalInvocationID.y; row < 32u; row += 8u) {
        int line = min(int(region.row * 32u + row), last.y);
        uvec4 texels;
        texels.x = imageLoad(level, ivec2(columns.x, line)).r;
        texels.y = imageLoad(level, ivec2(columns.y, line)).r;
        texels.z = imageLoad(level, ivec2(columns.z, line)).r;
        texels.w = imageLoad(level, ivec2(columns.w, line)).r;
        uint place = region.slot * 768u + row * 8u + gl_LocalInvocationID.x;
        pixels[place] = channel(0u, texels);
        pixels[place + 256u] = channel(8u, texels);
        pixels[place + 512u] = channel(16u, texels);
    }
}
