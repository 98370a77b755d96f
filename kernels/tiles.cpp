// The texture in host memory: which tiles of a frame differ from it, their colours and mipmaps, and the pixels of
// regions. A plain C interface, called with ctypes (arr_coc/ops/store/native.py); bytes are those of the reference in
// arr_coc/ops/store. Every caller has checked sizes and places.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

// A plane of a frame: samples, and bytes from row to row.
struct Plane {
    const uint8_t *data;
    int64_t stride;
};

// A plane as the texture keeps it, padded to whole tiles; `height` and `width` in samples are those without padding.
struct Kept {
    uint8_t *data;
    int64_t stride;
    int32_t height, width, tile_height, tile_width;
};

// `channels` of each plane's samples. Red is (luma * scale[0] * 2^-9 + v * scale[1] * 2^-8 + offset[0]) / 32, in steps
// that arr_coc/ops/store/raster.py describes. Levels are uint8 [rows * side, cols * side, 3].
struct Texture {
    int32_t rows, cols, planes, channels, level_count, threads;
    int16_t scale[5], offset[3];
    Kept kept[3];
    uint8_t *levels[6];
};

static const int LINE = 64;  // bytes of a cache line

// Copies whole lines past the caches, without reading first what is there: twice as fast where a frame changes everywhere.
static inline void stream(uint8_t *to, const uint8_t *from, int bytes) {
#if defined(__x86_64__)
    for (int x = 0; x < bytes; x += 16)
        _mm_stream_si128((__m128i *)(to + x), _mm_loadu_si128((const __m128i *)(from + x)));
#else
    std::memcpy(to, from, (size_t)bytes);
#endif
}

// Other threads see what was streamed.
static inline void settle() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

#if defined(__x86_64__)
#define BASELINE v2
#define BASELINE_NAME "x86-64-v2"
#define TARGET __attribute__((target("arch=x86-64-v3")))
namespace v3 {
#include "tiles.h"
}
#undef TARGET
#define TARGET __attribute__((target("arch=x86-64-v4,avx512vbmi,prefer-vector-width=512")))
namespace v4 {
#include "tiles.h"
}
#undef TARGET
#define TARGET __attribute__((target("arch=x86-64-v2")))
#else
#define BASELINE plain
#define BASELINE_NAME "baseline"
#define TARGET
#endif
namespace BASELINE {
#include "tiles.h"
}

// The functions of one instruction set.
struct Variant {
    const char *name;
    decltype(&BASELINE::compare_row) compare_row;
    decltype(&BASELINE::update_row) update_row;
    decltype(&BASELINE::gather) gather;
};

static Variant choose() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512vbmi"))
        return {"x86-64-v4", v4::compare_row, v4::update_row, v4::gather};
    if (__builtin_cpu_supports("x86-64-v3")) return {"x86-64-v3", v3::compare_row, v3::update_row, v3::gather};
    if (!__builtin_cpu_supports("x86-64-v2")) return {};
#endif
    return {BASELINE_NAME, BASELINE::compare_row, BASELINE::update_row, BASELINE::gather};
}

static const Variant chosen = choose();

// Less than this many tiles are not worth a thread, whose start takes as long as some dozens.
static const int64_t TILES_A_THREAD = 256;

// Does work(next) on some threads, this one included; next() gives each row of tiles to one of them, and then -1.
template <class Work> static void share(const Texture &texture, int64_t tiles, Work work) {
    std::atomic<int> taken{0};
    const auto next = [&] {
        const int row = taken++;
        return row < texture.rows ? row : -1;
    };
    std::vector<std::thread> helpers;
    const int64_t threads = std::min<int64_t>(texture.threads, tiles / TILES_A_THREAD);
    try {
        while ((int64_t)helpers.size() + 1 < threads) helpers.emplace_back([&] { work(next); });
    } catch (const std::system_error &) {  // as many as the system gives
    }
    work(next);
    for (auto &helper : helpers) helper.join();
}

extern "C" {

// Number of this interface; the caller refuses another one.
int32_t tiles_version() { return 2; }

// The instruction set that is used; null where this processor has none of those compiled.
const char *tiles_set() { return chosen.name; }

// Fills dirty [rows, cols] with 1 where a tile differs, by the rules of arr_coc/ops/store/difference.py.
void tiles_compare(const Texture *texture, const Plane *frame, int32_t mean, int32_t largest, uint8_t *dirty) {
    const Texture &t = *texture;
    share(t, (int64_t)t.rows * t.cols, [&](auto next) {
        std::vector<uint8_t> peaks((size_t)t.kept[0].width * t.channels);
        bool busy = false;
        for (int row = next(); row >= 0; row = next())
            busy = chosen.compare_row(t, frame, row, mean, largest, busy, peaks.data(), dirty + (int64_t)row * t.cols);
    });
}

// Takes the tiles where dirty [rows, cols] is 1, and brings their texels up to date on all levels.
void tiles_update(const Texture *texture, const Plane *frame, const uint8_t *dirty) {
    const Texture &t = *texture;
    share(t, std::count(dirty, dirty + (int64_t)t.rows * t.cols, 1), [&](auto next) {
        for (int row = next(); row >= 0; row = next())
            chosen.update_row(t, frame, row, dirty + (int64_t)row * t.cols);
        settle();
    });
}

// The pixels of regions int64 [count, 3] (shape, row, col): uint8 [count, 3, 32, 32]. `footprints` int32 [shapes, 3]
// (level, down, across).
void tiles_gather(const Texture *texture, const int64_t *regions, int64_t count, const int32_t *footprints,
                  uint8_t *out) {
    chosen.gather(*texture, regions, count, footprints, out);
}
}
