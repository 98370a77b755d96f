// Attention in bfloat16 by AMX. A plain C interface, called with ctypes (arr_coc/qwen/compiled_attention.py), which has checked
// sizes. Scores and softmax are float32: what is rounded is what a tile multiplies, weights and values.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

// Rows bfloat16 [images, count, heads, size], with the distances of neighbours along the first three axes, in numbers.
struct Part {
    const uint16_t *numbers;
    int64_t count, image, row, head;
};

struct Attention {
    Part query, key, value;
    int64_t images, heads, size;
    float scale;
    uint16_t *out;  // [images, queries, heads, size], contiguous
};

#if defined(__x86_64__)
#include "amx.h"
#include "attention_amx.h"
#endif

extern "C" {

// Number of this interface; the caller refuses another one.
int32_t attention_version() { return 1; }

// The instruction set that is used; "none" if `attention_rows` must not be called.
const char *attention_set() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    static const bool available =
        __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16") && tiles_available(22);  // products of bfloat16
    if (available) return "AMX";
#endif
    return "none";
}

// Mixes the values for each query: its products with the keys, times `scale`, through softmax, are their weights.
void attention_rows(const Attention *attention) {
#if defined(__x86_64__)
    const Attention &a = *attention;
    static thread_local std::vector<Head> held;
    // As many heads as threads at once: one thread finds the keys and values of its head in its second cache.
#if defined(_OPENMP)
    const int64_t threads = omp_get_max_threads();
#else
    const int64_t threads = 1;
#endif
    const int64_t all = a.images * a.heads, blocks = (a.query.count + QUERIES - 1) / QUERIES, most = std::min(threads, all);
    held.resize(std::max(held.size(), size_t(most)));
    Head *const heads = held.data();
#pragma omp parallel
    {
        const Tiles tiles;
        for (int64_t first = 0; first < all; first += most) {
            const int64_t count = std::min(most, all - first);
#pragma omp for
            for (int64_t h = 0; h < count; h++) heads[h].pack(a, first + h);
#pragma omp for collapse(2)
            for (int64_t h = 0; h < count; h++)
                for (int64_t block = 0; block < blocks; block++) attend(a, heads[h], first + h, block * QUERIES);
        }
    }
#else
    (void)attention;
#endif
}
}
