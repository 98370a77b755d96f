#version 450
// The pixels of regions, channel by channel: one workgroup a region, one invocation 16 texels of a row.

layout(local_size_x = 2, local_size_y = 32) in;

layout(std430, binding = 0) readonly restrict buffer Regions { uvec4 regions[]; };  // level, row, column, layer
layout(std430, binding = 1) writeonly restrict buffer Pixels { uvec4 pixels[]; };   // [region][channel][row][2]
layout(binding = 0) uniform usampler2DArray texels;

uvec3 channels(uint a, uint b, uint c, uint d) {
    uvec3 shift = uvec3(0u, 8u, 16u);
    return ((uvec3(a) >> shift) & 255u) | (((uvec3(b) >> shift) & 255u) << 8) | (((uvec3(c) >> shift) & 255u) << 16) |
           ((uvec3(d) >> shift) << 24);
}

void main() {
    uvec4 region = regions[gl_WorkGroupID.x];
    int level = int(region.x);
    ivec2 last = textureSize(texels, level).xy - 1;
    ivec2 first = ivec2(region.z * 32u + gl_LocalInvocationID.x * 16u, region.y * 32u + gl_LocalInvocationID.y);
    int line = min(first.y, last.y);
    uvec3 four[4];
    for (int part = 0; part < 4; ++part) {
        uint texel[4];
        for (int step = 0; step < 4; ++step) {
            int column = min(first.x + 4 * part + step, last.x);
            texel[step] = texelFetch(texels, ivec3(column, line, int(region.w)), level).r;
        }
        four[part] = channels(texel[0], texel[1], texel[2], texel[3]);
    }
    uint out_row = (gl_WorkGroupID.x * 96u + gl_LocalInvocationID.y) * 2u + gl_LocalInvocationID.x;
    pixels[out_row] = uvec4(four[0].r, four[1].r, four[2].r, four[3].r);
    pixels[out_row + 64u] = uvec4(four[0].g, four[1].g, four[2].g, four[3].g);
    pixels[out_row + 128u] = uvec4(four[0].b, four[1].b, four[2].b, four[3].b);
}
