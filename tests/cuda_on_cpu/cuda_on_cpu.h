// The part of CUDA C++ that kernels/*.cu use, on the CPU: the very same sources compile with g++ after this header.
//
// The threads of a block are fibers, run one after another from barrier to barrier, in ascending or descending order: a
// kernel whose result depends on the order lacks a barrier. A barrier that some threads of a block leave out, and a
// surface access outside its level, end the launch with an error, as they would on a device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include <ucontext.h>

#define __global__
#define __device__
#define __launch_bounds__(threads)
#define __shared__ static

using std::abs;
using std::max;
using std::min;

struct alignas(4) uchar4 {
    unsigned char x, y, z, w;
};
struct alignas(8) ushort4 {
    unsigned short x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
};

inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) {
    return {x, y, z, w};
}
inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) {
    return {x, y, z, w};
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

typedef unsigned long long cudaTextureObject_t, cudaSurfaceObject_t;

struct MipmappedArray;
struct Level {
    int width, height;
    std::vector<uchar4> texels;
    MipmappedArray *array = nullptr;
};
struct MipmappedArray {
    std::vector<Level> levels;
    size_t id = 0;
};
struct TextureObject {
    MipmappedArray *array;
    float least_level, most_level;
};
struct SurfaceObject {
    Level *level;
};

// The texel at a place, edge-clamped.
inline const uchar4 &nearest(const Level &level, int x, int y) {
    const int col = std::clamp(x, 0, level.width - 1), row = std::clamp(y, 0, level.height - 1);
    return level.texels[(size_t)row * level.width + col];
}

inline float4 blend(float4 a, float4 b, float share) {
    const float rest = 1.0f - share;
    return {a.x * rest + b.x * share, a.y * rest + b.y * share, a.z * rest + b.z * share, a.w * rest + b.w * share};
}

inline float4 as_float(uchar4 value) {
    return {value.x / 255.0f, value.y / 255.0f, value.z / 255.0f, value.w / 255.0f};
}

inline float4 bilinear(const Level &level, float u, float v) {
    const float x = u * (float)level.width - 0.5f, y = v * (float)level.height - 0.5f;
    const int left = (int)std::floor(x), top = (int)std::floor(y);
    const float4 above = blend(as_float(nearest(level, left, top)), as_float(nearest(level, left + 1, top)), x - left);
    const float4 below =
        blend(as_float(nearest(level, left, top + 1)), as_float(nearest(level, left + 1, top + 1)), x - left);
    return blend(above, below, y - top);
}

template <class Texel>
Texel tex2DLod(cudaTextureObject_t handle, float u, float v, float lod);

template <>
inline uchar4 tex2DLod<uchar4>(cudaTextureObject_t handle, float u, float v, float lod) {
    const TextureObject &texture = *(const TextureObject *)handle;
    const float wanted = std::min(std::max(lod, texture.least_level), texture.most_level);
    const Level &level = texture.array->levels.at((size_t)std::lround(wanted));
    return nearest(level, (int)std::floor(u * (float)level.width), (int)std::floor(v * (float)level.height));
}

template <>
inline float4 tex2DLod<float4>(cudaTextureObject_t handle, float u, float v, float lod) {
    const TextureObject &texture = *(const TextureObject *)handle;
    const float wanted = std::min(std::max(lod, texture.least_level), texture.most_level);
    const size_t fine = (size_t)wanted, coarse = std::min(fine + 1, texture.array->levels.size() - 1);
    const std::vector<Level> &levels = texture.array->levels;
    return blend(bilinear(levels[fine], u, v), bilinear(levels[coarse], u, v), wanted - (float)fine);
}

template <class Texel>
void surf2Dwrite(Texel value, cudaSurfaceObject_t handle, int byte, int y) {
    Level &level = *((const SurfaceObject *)handle)->level;
    const int x = byte / (int)sizeof(Texel);
    if (byte % (int)sizeof(Texel) != 0 || x < 0 || y < 0 || x >= level.width || y >= level.height) {
        throw std::out_of_range("a surface write outside its level");
    }
    level.texels[(size_t)y * level.width + x] = value;
}

inline int atomicAdd(int *at, int value) {
    const int before = *at;
    *at = before + value;
    return before;
}
inline int atomicMax(int *at, int value) {
    const int before = *at;
    *at = std::max(before, value);
    return before;
}
inline int atomicMin(int *at, int value) {
    const int before = *at;
    *at = std::min(before, value);
    return before;
}

namespace block {

const size_t STACK = 64 << 10;
const size_t MOST = 1024;

struct Fiber {
    ucontext_t context;
    bool ended;
};

static ucontext_t scheduler;
static Fiber fibers[MOST];
static Fiber *running;
static const std::vector<void *> *arguments;
static void (*kernel)(const std::vector<void *> &);
static const char *failure;
static bool descending;

inline char *stacks() {
    static char *memory = (char *)std::malloc(STACK * MOST);
    return memory;
}

static void body() {
    try {
        kernel(*arguments);
    } catch (const std::exception &error) {
        failure = "a kernel left its memory";
    }
    running->ended = true;
    swapcontext(&running->context, &scheduler);
}

// Runs every thread up to its next barrier or its end. Whether all have ended.
static bool advance(unsigned threads) {
    unsigned ended = 0;
    for (unsigned i = 0; i < threads; ++i) {
        const unsigned thread = descending ? threads - 1 - i : i;
        running = &fibers[thread];
        if (!running->ended) {
            threadIdx = {thread, 0, 0};
            swapcontext(&scheduler, &running->context);
        }
        ended += running->ended;
    }
    if (ended != 0 && ended != threads) {
        failure = "some threads of a block left out a barrier";
    }
    return ended != 0;
}

static void run(unsigned threads) {
    for (unsigned thread = 0; thread < threads; ++thread) {
        Fiber &fiber = fibers[thread];
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks() + thread * STACK;
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        fiber.ended = false;
        makecontext(&fiber.context, body, 0);
    }
    while (failure == nullptr && !advance(threads)) {
    }
}

// Runs a whole grid; nullptr, or what went wrong.
static const char *launch(void (*invoke)(const std::vector<void *> &), const std::vector<void *> &parameters, dim3 grid,
                          unsigned threads) {
    kernel = invoke;
    arguments = &parameters;
    failure = nullptr;
    gridDim = grid;
    blockDim = {threads, 1, 1};
    for (unsigned row = 0; row < grid.y; ++row) {
        for (unsigned col = 0; col < grid.x && failure == nullptr; ++col) {
            blockIdx = {col, row, 0};
            run(threads);
        }
    }
    return failure;
}

}  // namespace block

inline void __syncthreads() {
    swapcontext(&block::running->context, &block::scheduler);
}
