// The texture as kernels see it: RGBA8, six levels, of which one texture object reads and six surface objects write.
//
// Kernels that work on tiles run one block a tile with 256 threads. Reading and writing the texture is never done in one
// launch, because the texture cache does not see surface writes before the next one.
#pragma once

#define TILE 32
#define HALF 16
#define THREADS 256

typedef unsigned char u8;

// Width and height of level 0 in texels, multiples of 32.
struct Size {
    int width, height;
};

// A texel of one level; outside the level, the nearest one. Normalised coordinates are the only ones that a mipmapped
// texture takes; at a texel's centre their rounding is thousands of times smaller than half a texel.
__device__ inline uchar4 texel(cudaTextureObject_t texture, int level, int x, int y, Size size) {
    const float u = (x + 0.5f) / (float)(size.width >> level);
    const float v = (y + 0.5f) / (float)(size.height >> level);
    return tex2DLod<uchar4>(texture, u, v, (float)level);
}

__device__ inline void put(uchar4 value, cudaSurfaceObject_t surface, int x, int y) {
    surf2Dwrite(value, surface, x * (int)sizeof(uchar4), y);
}

__device__ inline int clamped(int value, int limit) {
    return min(max(value, 0), limit - 1);
}

// A frame on the device: uint8 samples at any distance from each other.
struct Frame {
    const u8 *samples;
    long long row, col, channel;
    int height, width;
};

// A pixel of the frame, which is padded by replicating its edge.
__device__ inline uchar4 pixel(const Frame &frame, int x, int y) {
    const u8 *at = frame.samples + clamped(y, frame.height) * frame.row + clamped(x, frame.width) * frame.col;
    return make_uchar4(at[0], at[frame.channel], at[2 * frame.channel], 255);
}

// Adds up K quantities over the block's 256 threads. `scratch` holds K * 272 numbers; `totals` is there for every thread
// afterwards, and `scratch` may be used again.
template <int K>
__device__ inline void block_sums(const int (&mine)[K], int *scratch, int *totals) {
    static_assert(K <= 16, "sixteen threads add up each quantity");
    const int thread = (int)threadIdx.x;
    int *partial = scratch + K * THREADS;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        scratch[k * THREADS + thread] = mine[k];
    }
    __syncthreads();
    if (thread < K * 16) {
        const int *row = scratch + thread / 16 * THREADS + thread % 16;
        int sum = 0;
        for (int i = 0; i < 16; ++i) {
            sum += row[16 * i];
        }
        partial[thread] = sum;
    }
    __syncthreads();
    if (thread < K) {
        int sum = 0;
        for (int i = 0; i < 16; ++i) {
            sum += partial[thread * 16 + i];
        }
        totals[thread] = sum;
    }
    __syncthreads();
}
