#version 450
// Entropy of the luma histogram of tiles at level 1: one workgroup a tile, one invocation a row of it.
//
// As arr_coc/channels.py computes it, in whole numbers: two histograms of 16 bins that lie half a bin apart, of which
// the smaller entropy counts.

layout(local_size_x = 16) in;

struct Tile {
    uint row;
    uint column;
    uint layer;
    uint slot;  // where its entropy goes
};

layout(std430, binding = 0) readonly restrict buffer Tiles { Tile tiles[]; };
layout(std430, binding = 1) writeonly restrict buffer Entropies { float entropies[]; };
layout(std430, binding = 2) readonly restrict buffer Logarithms { uint count_log[257]; };  // n log2 n, times 2^20
layout(r32ui, binding = 0) readonly restrict uniform uimage2DArray level1;

shared uint halves[32];
shared uint aligned_sums[16];
shared uint shifted_sums[16];

// Rec. 601 luma as OpenCV rounds it.
uint luma(uint texel) {
    return ((texel & 255u) * 9798u + ((texel >> 8) & 255u) * 19235u + ((texel >> 16) & 255u) * 3735u + 16384u) >> 15;
}

void main() {
    Tile tile = tiles[gl_WorkGroupID.x];
    uint me = gl_LocalInvocationIndex;
    halves[2u * me] = 0u;
    halves[2u * me + 1u] = 0u;
    barrier();
    ivec3 first = ivec3(tile.column * 16u, tile.row * 16u + me, tile.layer);
    for (int step = 0; step < 16; ++step) {
        atomicAdd(halves[luma(imageLoad(level1, first + ivec3(step, 0, 0)).r) >> 3], 1u);
    }
    barrier();
    aligned_sums[me] = count_log[halves[2u * me] + halves[2u * me + 1u]];
    uint next = me == 15u ? 0u : halves[2u * me + 2u];
    shifted_sums[me] = count_log[halves[2u * me + 1u] + next] + (me == 0u ? count_log[halves[0]] : 0u);
    barrier();
    if (me == 0u) {
        uint aligned_sum = 0u;
        uint shifted_sum = 0u;
        for (int bin = 0; bin < 16; ++bin) {
            aligned_sum += aligned_sums[bin];
            shifted_sum += shifted_sums[bin];
        }
        uint bits = count_log[256] - max(aligned_sum, shifted_sum);
        entropies[tile.slot] = float(bits) / 1073741824.0;  // 256 texels, log2(16) bits, 2^20
    }
}
