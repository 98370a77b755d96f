// Which tiles of a frame on the device differ from what the texture holds, by the rules of arr_coc/ops/difference.py for
// RGB: of each channel, cells are rounded means of the absolute difference over 2×2 pixels; a tile is dirty where a cell
// exceeds `largest`, or the tile's mean, rounded, exceeds `mean`.
#include "texture.cuh"

__device__ inline int rounded_mean(int a, int b, int c, int d) {
    return (a + b + c + d + 2) >> 2;
}

// `dirty` uint8 [rows, cols]. Grid: (cols, rows) blocks; `width` and `height` are the frame's own, without padding.
extern "C" __global__ void __launch_bounds__(THREADS)
compare_frame(const u8 *samples, long long row_step, long long col_step, long long channel_step, int height, int width,
              cudaTextureObject_t texture, float mean, float largest, u8 *dirty) {
    __shared__ int cells[3][THREADS];
    __shared__ int sums[3], peak;
    const Frame frame = {samples, row_step, col_step, channel_step, height, width};
    const Size size = {(int)gridDim.x * TILE, (int)gridDim.y * TILE};
    const int thread = (int)threadIdx.x;
    int deltas[3][4];
    for (int i = 0; i < 4; ++i) {
        const int x = (int)blockIdx.x * TILE + 2 * (thread % HALF) + i % 2;
        const int y = (int)blockIdx.y * TILE + 2 * (thread / HALF) + i / 2;
        const uchar4 now = pixel(frame, x, y), before = texel(texture, 0, x, y, size);
        deltas[0][i] = abs(now.x - before.x);
        deltas[1][i] = abs(now.y - before.y);
        deltas[2][i] = abs(now.z - before.z);
    }
    for (int k = 0; k < 3; ++k) {
        cells[k][thread] = rounded_mean(deltas[k][0], deltas[k][1], deltas[k][2], deltas[k][3]);
    }
    if (thread < 3) {
        sums[thread] = 0;
        peak = 0;
    }
    __syncthreads();
    if (thread < THREADS / 4) {
        const int first = thread / 8 * 2 * HALF + thread % 8 * 2;
        for (int k = 0; k < 3; ++k) {
            const int a = cells[k][first], b = cells[k][first + 1];
            const int c = cells[k][first + HALF], d = cells[k][first + HALF + 1];
            atomicMax(&peak, max(max(a, b), max(c, d)));
            atomicAdd(&sums[k], rounded_mean(a, b, c, d));
        }
    }
    __syncthreads();
    if (thread == 0) {
        const float most = (float)max(sums[0], max(sums[1], sums[2]));
        const bool differs = (float)peak > largest || rintf(most / (THREADS / 4)) > mean;
        dirty[blockIdx.y * gridDim.x + blockIdx.x] = differs ? 1 : 0;
    }
}
