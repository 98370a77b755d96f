// Copies the pixels of regions out of the texture, straight into a tensor [K, 3, 32, 32].
//
// `regions` int64 [K, 3] (shape, row, col), `scales` int32 [shapes, 2]: log2 of each shape's rows and columns in tiles. A square of
// level L shows the 32×32 texels at (32r, 32c) of that level, edge-clamped; another shape those of its finer side's level, each
// the mean of several along the longer side, halves up.
// Grid: K blocks. Each thread makes four texels of a row, so that a warp writes whole lines of memory.
#include "texture.cuh"

struct Shapes {
    const int *scales;
    int count;
};

// The mean of 2^down × 2^across texels.
__device__ inline uchar4 mean(cudaTextureObject_t texture, int level, int x, int y, int down, int across, Size size) {
    const int shift = down + across;
    const int half = (1 << shift) / 2;
    int red = half, green = half, blue = half;
#pragma unroll 1
    for (int row = 0; row < 1 << down; ++row) {
#pragma unroll 1
        for (int col = 0; col < 1 << across; ++col) {
            const uchar4 one = texel(texture, level, x + col, y + row, size);
            red += one.x;
            green += one.y;
            blue += one.z;
        }
    }
    return make_uchar4(red >> shift, green >> shift, blue >> shift, 255);
}

__device__ inline void read_four(cudaTextureObject_t texture, const long long *region, Shapes shapes, Size size,
                                 uchar4 (&four)[4]) {
    const int thread = (int)threadIdx.x;
    const int *scales = shapes.scales + 2 * clamped((int)region[0], shapes.count);
    const int level = min(scales[0], scales[1]), down = scales[0] - level, across = scales[1] - level;
    const int x = (int)region[2] * TILE + thread % 8 * 4, y = (int)region[1] * TILE + thread / 8;
    for (int i = 0; i < 4; ++i) {
        four[i] = mean(texture, level, (x + i) * (1 << across), y * (1 << down), down, across, size);
    }
}

// As they are: `out` uint8 [K, 3, 32, 32].
extern "C" __global__ void __launch_bounds__(THREADS)
gather_bytes(cudaTextureObject_t texture, const long long *regions, const int *scales, int shapes, int width, int height,
             uchar4 *out) {
    uchar4 four[4];
    read_four(texture, regions + 3 * (long long)blockIdx.x, Shapes{scales, shapes}, Size{width, height}, four);
    uchar4 *mine = out + (long long)blockIdx.x * (3 * THREADS) + threadIdx.x;
    mine[0] = make_uchar4(four[0].x, four[1].x, four[2].x, four[3].x);
    mine[THREADS] = make_uchar4(four[0].y, four[1].y, four[2].y, four[3].y);
    mine[2 * THREADS] = make_uchar4(four[0].z, four[1].z, four[2].z, four[3].z);
}

// As 16-bit numbers: `table` holds those that the bytes of red, green and blue become, [3, 256]; `out` [K, 3, 32, 32].
extern "C" __global__ void __launch_bounds__(THREADS)
gather_halves(cudaTextureObject_t texture, const long long *regions, const int *scales, int shapes, int width, int height,
              const unsigned short *table, ushort4 *out) {
    uchar4 four[4];
    read_four(texture, regions + 3 * (long long)blockIdx.x, Shapes{scales, shapes}, Size{width, height}, four);
    const unsigned short *red = table, *green = table + 256, *blue = table + 512;
    ushort4 *mine = out + (long long)blockIdx.x * (3 * THREADS) + threadIdx.x;
    mine[0] = make_ushort4(red[four[0].x], red[four[1].x], red[four[2].x], red[four[3].x]);
    mine[THREADS] = make_ushort4(green[four[0].y], green[four[1].y], green[four[2].y], green[four[3].y]);
    mine[2 * THREADS] = make_ushort4(blue[four[0].z], blue[four[1].z], blue[four[2].z], blue[four[3].z]);
}
