// The thirteen channels of a texture array and the entropy beside them, as arr_coc/texture.py defines them.
#include "texture.cuh"

#define CLUSTERS 4
#define CLUSTER_STEPS 4
#define HALO (HALF + 2)
#define NEAR 5
#define FAR 11
#define SOBEL_LARGEST 1020.0f

struct Opponents {
    float intensity, red_green, blue_yellow;
};

__device__ inline Opponents opponents(float red, float green, float blue) {
    return Opponents{(red + green + blue) / (3.0f * 255.0f), (red - green) / 255.0f,
                     (blue - 0.5f * (red + green)) / 255.0f};
}

__device__ inline int luma_of(uchar4 value) {
    return (value.x * 9798 + value.y * 19235 + value.z * 3735 + (1 << 14)) >> 15;
}

// Sobel gx, gy and the rounded magnitude of one texel of level 1.
__device__ inline void edges_at(const u8 (&luma)[HALO][HALO], int x, int y, int *out) {
    const u8 *above = &luma[y][x], *here = &luma[y + 1][x], *below = &luma[y + 2][x];
    const int gx = above[2] + 2 * here[2] + below[2] - above[0] - 2 * here[0] - below[0];
    const int gy = below[0] + 2 * below[1] + below[2] - above[0] - 2 * above[1] - above[2];
    out[0] = gx;
    out[1] = gy;
    out[2] = (int)rintf(sqrtf((float)(gx * gx + gy * gy)));
}

__device__ inline void add_colour(uchar4 value, int *sums) {
    sums[0] = value.x;
    sums[1] = value.y;
    sums[2] = value.z;
}

// How far the most different of four texels lies from its surroundings, for one opponent.
__device__ inline float contrast(float high, float low, float near, float far) {
    const float sum = fmaxf(high - near, near - low) + fmaxf(high - far, far - low);
    return fminf(fmaxf(sum / 2.0f, 0.0f), 1.0f);
}

// Channels 8 to 10 of one tile, from level 4 and the sums of red, green and blue over the tiles around.
__device__ inline void saliency(const uchar4 (&fine)[4], const int *near, const int *far, float *out, int step) {
    const float few = NEAR * NEAR, many = FAR * FAR;
    const Opponents close = opponents(near[0] / few, near[1] / few, near[2] / few);
    const Opponents wide = opponents(far[0] / many, far[1] / many, far[2] / many);
    Opponents high = {-2.0f, -2.0f, -2.0f}, low = {2.0f, 2.0f, 2.0f};
    for (int i = 0; i < 4; ++i) {
        const Opponents here = opponents(fine[i].x, fine[i].y, fine[i].z);
        high = {fmaxf(high.intensity, here.intensity), fmaxf(high.red_green, here.red_green),
                fmaxf(high.blue_yellow, here.blue_yellow)};
        low = {fminf(low.intensity, here.intensity), fminf(low.red_green, here.red_green),
               fminf(low.blue_yellow, here.blue_yellow)};
    }
    out[0] = contrast(high.intensity, low.intensity, close.intensity, wide.intensity);
    out[step] = contrast(high.red_green, low.red_green, close.red_green, wide.red_green);
    out[2 * step] = contrast(high.blue_yellow, low.blue_yellow, close.blue_yellow, wide.blue_yellow);
}

// Channel 11 of one tile: four thirds of the summed variances of 64 texels.
__device__ inline float colour_variance(const int *sums, const int *squares) {
    float variance = 0.0f;
    for (int k = 0; k < 3; ++k) {
        const float mean = sums[k] / 64.0f;
        variance += squares[k] / 64.0f - mean * mean;
    }
    return fmaxf(variance * (float)(4.0 / 3.0 / (255.0 * 255.0)), 0.0f);
}

// Shannon entropy of 256 texels in 16 bins, over log 16. Of the bins and those half a bin further the smaller counts.
// `logs` int64 [257] holds c * log2(c) in units of 2^-20.
__device__ inline float entropy_of(const int *halves, const long long *logs) {
    long long aligned = 0, shifted = logs[halves[0]] + logs[halves[31]];
    for (int i = 0; i < 16; ++i) {
        aligned += logs[halves[2 * i] + halves[2 * i + 1]];
    }
    for (int i = 0; i < 15; ++i) {
        shifted += logs[halves[2 * i + 1] + halves[2 * i + 2]];
    }
    return (float)(logs[256] - max(aligned, shifted)) * (1.0f / (1 << 30));
}

// All but the clusters' channel: `channels` float32 [13, rows, cols], `entropy` float32 [rows, cols]; `places` float32
// [rows + cols], the rows' coordinates and then the columns'. Grid: (cols, rows) blocks.
extern "C" __global__ void __launch_bounds__(THREADS)
tile_channels(cudaTextureObject_t texture, const float *places, const long long *logs, float *channels,
              float *entropy) {
    __shared__ u8 luma[HALO][HALO];
    __shared__ int halves[32], scratch[15 * (THREADS + 16)], totals[15];
    const Size size = {(int)gridDim.x * TILE, (int)gridDim.y * TILE};
    const int thread = (int)threadIdx.x, col = (int)blockIdx.x, row = (int)blockIdx.y;
    const int tile = row * (int)gridDim.x + col, tiles = (int)(gridDim.x * gridDim.y);
    for (int i = thread; i < HALO * HALO; i += THREADS) {
        const int x = col * HALF + i % HALO - 1, y = row * HALF + i / HALO - 1;
        luma[i / HALO][i % HALO] = (u8)luma_of(texel(texture, 1, x, y, size));
    }
    if (thread < 32) {
        halves[thread] = 0;
    }
    __syncthreads();
    // edges 0-2, colour 3-5 and its squares 6-8, near surround 9-11, far surround 12-14
    int mine[15] = {};
    edges_at(luma, thread % HALF, thread / HALF, mine);
    atomicAdd(&halves[luma[thread / HALF + 1][thread % HALF + 1] >> 3], 1);
    if (thread < 64) {
        add_colour(texel(texture, 2, col * 8 + thread % 8, row * 8 + thread / 8, size), mine + 3);
        for (int k = 0; k < 3; ++k) {
            mine[6 + k] = mine[3 + k] * mine[3 + k];
        }
    }
    if (thread < FAR * FAR) {
        const int right = thread % FAR - FAR / 2, down = thread / FAR - FAR / 2;
        add_colour(texel(texture, 5, col + right, row + down, size), mine + 12);
        if (abs(right) <= NEAR / 2 && abs(down) <= NEAR / 2) {
            for (int k = 0; k < 3; ++k) {
                mine[9 + k] = mine[12 + k];
            }
        }
    }
    block_sums(mine, scratch, totals);
    if (thread != 0) {
        return;
    }
    const uchar4 colour = texel(texture, 5, col, row, size);
    uchar4 fine[4];
    for (int i = 0; i < 4; ++i) {
        fine[i] = texel(texture, 4, col * 2 + i % 2, row * 2 + i / 2, size);
    }
    float *out = channels + tile;
    out[0] = colour.x / 255.0f;
    out[tiles] = colour.y / 255.0f;
    out[2 * tiles] = colour.z / 255.0f;
    out[3 * tiles] = places[row];
    out[4 * tiles] = places[gridDim.y + col];
    out[5 * tiles] = totals[0] / 256.0f / SOBEL_LARGEST;
    out[6 * tiles] = totals[1] / 256.0f / SOBEL_LARGEST;
    out[7 * tiles] = totals[2] / 256.0f / (float)(1020.0 * 1.4142135623730951);
    saliency(fine, totals + 9, totals + 12, out + 8 * tiles, tiles);
    out[11 * tiles] = colour_variance(totals + 3, totals + 6);
    entropy[tile] = entropy_of(halves, logs);
}

struct Centre {
    float red, green, blue;
};

// 2 c·p − |c|²: the nearer the centre, the larger.
__device__ inline float nearness(Centre centre, uchar4 point) {
    const float square = centre.red * centre.red + centre.green * centre.green + centre.blue * centre.blue;
    return 2.0f * (centre.red * point.x + centre.green * point.y + centre.blue * point.z) - square;
}

// Channel 12: distance of each texel of level 5 to the nearest of four cluster centres, over the colour cube's diagonal;
// `out` float32 [rows, cols]. k-means from a fixed start, in a fixed number of steps. One block of 256 threads.
extern "C" __global__ void __launch_bounds__(THREADS)
cluster_distance(cudaTextureObject_t texture, int rows, int cols, float *out) {
    __shared__ Centre centres[CLUSTERS];
    __shared__ int scratch[4 * CLUSTERS * (THREADS + 16)], totals[4 * CLUSTERS];
    const Centre start[CLUSTERS] = {{64, 64, 64}, {192, 192, 192}, {192, 104, 64}, {64, 104, 192}};
    const Size size = {cols * TILE, rows * TILE};
    const int thread = (int)threadIdx.x;
    if (thread < CLUSTERS) {
        centres[thread] = start[thread];
    }
    __syncthreads();
    for (int step = 0; step < CLUSTER_STEPS; ++step) {
        int mine[4 * CLUSTERS] = {};
        for (int i = thread; i < rows * cols; i += THREADS) {
            const uchar4 point = texel(texture, 5, i % cols, i / cols, size);
            float near[CLUSTERS];
            for (int k = 0; k < CLUSTERS; ++k) {
                near[k] = nearness(centres[k], point);
            }
            const float most = fmaxf(fmaxf(near[0], near[1]), fmaxf(near[2], near[3]));
            for (int k = 0; k < CLUSTERS; ++k) {
                if (near[k] == most) {
                    mine[4 * k] += point.x;
                    mine[4 * k + 1] += point.y;
                    mine[4 * k + 2] += point.z;
                    mine[4 * k + 3] += 1;
                }
            }
        }
        block_sums(mine, scratch, totals);
        const int *sums = totals + 4 * (thread % CLUSTERS);
        if (thread < CLUSTERS && sums[3] > 0) {
            const float count = (float)sums[3];
            centres[thread] = Centre{sums[0] / count, sums[1] / count, sums[2] / count};
        }
        __syncthreads();
    }
    for (int i = thread; i < rows * cols; i += THREADS) {
        const uchar4 point = texel(texture, 5, i % cols, i / cols, size);
        float least = 3.0f * 255.0f * 255.0f;
        for (int k = 0; k < CLUSTERS; ++k) {
            const float red = point.x - centres[k].red, green = point.y - centres[k].green;
            const float blue = point.z - centres[k].blue;
            least = fminf(least, red * red + green * green + blue * blue);
        }
        out[i] = sqrtf(least) / (float)(255.0 * 1.7320508075688772);
    }
}
