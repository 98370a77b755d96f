// Brings tiles of the texture up to date, all six levels in one launch: each texel of a coarser level is
// (a + b + c + d + 2) >> 2 of the four below it, and as 32 = 2^5 none of them lies in another tile.
#include "texture.cuh"

__device__ inline uchar4 mean(uchar4 a, uchar4 b, uchar4 c, uchar4 d) {
    return make_uchar4((u8)((a.x + b.x + c.x + d.x + 2) >> 2), (u8)((a.y + b.y + c.y + d.y + 2) >> 2),
                       (u8)((a.z + b.z + c.z + d.z + 2) >> 2), 255);
}

// Writes tile (row, col) on all levels. Each thread brings the 2×2 texels at (2 * (t % 16), 2 * (t / 16)), row by row.
__device__ inline void write_tile(const uchar4 (&quad)[4], int row, int col, const cudaSurfaceObject_t (&levels)[6]) {
    __shared__ uchar4 texels[2][THREADS];
    const int thread = (int)threadIdx.x;
    const int x = thread % HALF, y = thread / HALF;
    for (int i = 0; i < 4; ++i) {
        put(quad[i], levels[0], col * TILE + 2 * x + i % 2, row * TILE + 2 * y + i / 2);
    }
    const uchar4 first = mean(quad[0], quad[1], quad[2], quad[3]);
    texels[1][thread] = first;
    put(first, levels[1], col * HALF + x, row * HALF + y);
#pragma unroll
    for (int level = 2; level < 6; ++level) {
        __syncthreads();
        const int side = TILE >> level;
        if (thread < side * side) {
            const int across = thread % side, down = thread / side;
            const uchar4 *fine = texels[(level - 1) % 2] + 4 * side * down + 2 * across;
            const uchar4 value = mean(fine[0], fine[1], fine[2 * side], fine[2 * side + 1]);
            texels[level % 2][thread] = value;
            put(value, levels[level], col * side + across, row * side + down);
        }
    }
}

// Tiles as the host packed them: `tiles` uint8 [n, 32, 32, 3], `places` int32 [n, 2] (row, col). Grid: n blocks.
extern "C" __global__ void __launch_bounds__(THREADS)
upload_tiles(const u8 *tiles, const int *places, cudaSurfaceObject_t level0, cudaSurfaceObject_t level1,
             cudaSurfaceObject_t level2, cudaSurfaceObject_t level3, cudaSurfaceObject_t level4,
             cudaSurfaceObject_t level5) {
    const cudaSurfaceObject_t levels[6] = {level0, level1, level2, level3, level4, level5};
    const int tile = (int)blockIdx.x, thread = (int)threadIdx.x;
    const u8 *texels = tiles + (long long)tile * (TILE * TILE * 3);
    uchar4 quad[4];
    for (int i = 0; i < 4; ++i) {
        const u8 *at = texels + ((2 * (thread / HALF) + i / 2) * TILE + 2 * (thread % HALF) + i % 2) * 3;
        quad[i] = make_uchar4(at[0], at[1], at[2], 255);
    }
    write_tile(quad, places[2 * tile], places[2 * tile + 1], levels);
}

// The tiles of a frame on the device where `dirty` uint8 [rows, cols] is not 0. Grid: (cols, rows) blocks.
extern "C" __global__ void __launch_bounds__(THREADS)
upload_frame(const u8 *samples, long long row_step, long long col_step, long long channel_step, int height, int width,
             const u8 *dirty, cudaSurfaceObject_t level0, cudaSurfaceObject_t level1, cudaSurfaceObject_t level2,
             cudaSurfaceObject_t level3, cudaSurfaceObject_t level4, cudaSurfaceObject_t level5) {
    const cudaSurfaceObject_t levels[6] = {level0, level1, level2, level3, level4, level5};
    const Frame frame = {samples, row_step, col_step, channel_step, height, width};
    const int col = (int)blockIdx.x, row = (int)blockIdx.y, thread = (int)threadIdx.x;
    if (dirty[row * (int)gridDim.x + col] == 0) {
        return;
    }
    uchar4 quad[4];
    for (int i = 0; i < 4; ++i) {
        quad[i] = pixel(frame, col * TILE + 2 * (thread % HALF) + i % 2, row * TILE + 2 * (thread / HALF) + i / 2);
    }
    write_tile(quad, row, col, levels);
}
