// Colours at points of the texture, filtered by the hardware: one thread a sample, RGB of 0..1.
//
// `smooth` blends the eight texels around a point and its level. Places are in texels of level 0, whose centres lie at
// 0.5, 1.5…; beyond the edge its texels go on.
#include "texture.cuh"

#define MOST_PROBES 16.0f

__device__ inline void store(float *out, float red, float green, float blue) {
    out[0] = red;
    out[1] = green;
    out[2] = blue;
}

// `points` float32 [n, 3] (x, y, level), `out` float32 [n, 3]. Grid: enough blocks of 256 threads for n.
extern "C" __global__ void __launch_bounds__(THREADS)
sample_points(cudaTextureObject_t smooth, const float *points, int n, int width, int height, float *out) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) {
        return;
    }
    const float *point = points + 3LL * i;
    const float4 colour = tex2DLod<float4>(smooth, point[0] / (float)width, point[1] / (float)height, point[2]);
    store(out + 3LL * i, colour.x, colour.y, colour.z);
}

// Averaged over elongated footprints: `points` float32 [n, 2] (x, y) are their centres, `footprints` float32 [n, 2] (dx, dy)
// their long axes, `across` their width; `out` float32 [n, 3]. Isotropic samples along the axis, at the level of their
// own width. Grid: enough blocks of 256 threads for n.
extern "C" __global__ void __launch_bounds__(THREADS)
sample_footprints(cudaTextureObject_t smooth, const float *points, const float *footprints, float across, int n,
                  int width, int height, float *out) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) {
        return;
    }
    const float x = points[2LL * i], y = points[2LL * i + 1], dx = footprints[2LL * i], dy = footprints[2LL * i + 1];
    const float length = sqrtf(dx * dx + dy * dy);
    const float count = fminf(fmaxf(ceilf(length / across), 1.0f), MOST_PROBES);
    const float level = log2f(fmaxf(fmaxf(across, length / count), 1.0f));
    float red = 0.0f, green = 0.0f, blue = 0.0f;
    for (float probe = 0.5f; probe < count; probe += 1.0f) {
        const float along = probe / count - 0.5f;
        const float u = (x + dx * along) / (float)width, v = (y + dy * along) / (float)height;
        const float4 colour = tex2DLod<float4>(smooth, u, v, level);
        red += colour.x;
        green += colour.y;
        blue += colour.z;
    }
    store(out + 3LL * i, red / count, green / count, blue / count);
}
