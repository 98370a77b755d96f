// Packs tiles of the texture for the host, which keeps a copy of its levels and wants only what changed.
//
// `places` int32 [n, 2] (row, col). Grid: n blocks.
#include "texture.cuh"

__device__ inline void pack(uchar4 value, u8 *out) {
    out[0] = value.x;
    out[1] = value.y;
    out[2] = value.z;
}

// Level 0: `out` uint8 [n, 32, 32, 3].
extern "C" __global__ void __launch_bounds__(THREADS)
fetch_fine(cudaTextureObject_t texture, const int *places, int width, int height, u8 *out) {
    const int tile = (int)blockIdx.x, thread = (int)threadIdx.x;
    for (int i = thread; i < TILE * TILE; i += THREADS) {
        const int x = places[2 * tile + 1] * TILE + i % TILE, y = places[2 * tile] * TILE + i / TILE;
        pack(texel(texture, 0, x, y, Size{width, height}), out + ((long long)tile * (TILE * TILE) + i) * 3);
    }
}

// Levels 1 to 5, one after another: `out` uint8 [n, 16, 16, 3], [n, 8, 8, 3]… [n, 1, 1, 3].
extern "C" __global__ void __launch_bounds__(THREADS)
fetch_coarse(cudaTextureObject_t texture, const int *places, int width, int height, u8 *out) {
    const int tile = (int)blockIdx.x, thread = (int)threadIdx.x;
    for (int level = 1; level < 6; ++level) {
        const int side = TILE >> level, texels = side * side;
        if (thread < texels) {
            const int x = places[2 * tile + 1] * side + thread % side, y = places[2 * tile] * side + thread / side;
            const uchar4 value = texel(texture, level, x, y, Size{width, height});
            pack(value, out + ((long long)tile * texels + thread) * 3);
        }
        out += (long long)gridDim.x * (texels * 3);
    }
}
