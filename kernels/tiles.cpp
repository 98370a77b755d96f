// The texture in host memory: which tiles of a frame differ from it, their colours and mipmaps, and the pixels of
// regions. A plain C interface, called with ctypes (arr_coc/texture/store/native.py); bytes are those of the
// reference in arr_coc/texture/store. Every caller has checked sizes and places.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
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
// that arr_coc/texture/store/raster.py describes. Levels are uint8 [rows * side, cols * side, 3]. Level 0 of a frame of
// three planes or of luma is written by tiles_finest alone: it is not read of most frames, and is half of what is written.
//
// `known` [rows, cols] are the hashes of samples that were compared with the kept ones and do not differ; zero is of none.
// `rest` [rows] counts the frames for which a row of tiles is not hashed, because nearly all of its tiles changed.
struct Hash {
    uint64_t half[2];
};
struct Texture {
    int32_t rows, cols, planes, channels, level_count, threads;
    int16_t scale[5], offset[3];
    Kept kept[3];
    uint8_t *levels[6];
    Hash *known;
    uint8_t *rest;
};

// Random words of this process, unknown outside: those of NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC,
// CRYPTO 1999) for the 3,072 bytes of the largest tile, and two for its second half, which is the first one shifted.
struct Keys {
    uint32_t words[3072 / 4 + 2];
    Keys() {
        std::random_device random;
        for (auto &word : words) word = random();
    }
};
static const Keys KEYS;

struct alignas(64) Lines {
    uint64_t lanes[8];
};

// What a thread needs of memory to compare a row of tiles.
struct Scratch {
    uint8_t *peaks;
    Hash *hashes;
    uint64_t *sums;
};

static const int LINE = 64;  // bytes of a cache line

// Bytes before they are needed that samples are asked for: processors themselves stop at the end of a page.
static const int AHEAD = 3072;

// Copies whole lines past the caches, without reading first what is there: twice as fast if a frame changes everywhere.
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

// In VECTOR bytes of 64-bit lanes: PRODUCTS multiplies their lower halves, APART sums their samples' differences. Not by
// the functions of <immintrin.h>: with -march=native those are not for the other sets.
#define PLAIN_PRODUCTS(a, b) ((Lanes)(a) & 0xffffffff) * ((Lanes)(b) & 0xffffffff)
#if defined(__x86_64__)
#if defined(__clang__)  // which finds the instruction by itself
#define MULTIPLY(builtin, a, b) PLAIN_PRODUCTS(a, b)
#else
#define MULTIPLY(builtin, a, b) (Lanes) builtin((Ints)(a), (Ints)(b))
#define MULTIPLY_512(a, b) __builtin_ia32_pmuludq512_mask(a, b, (Longs){}, (unsigned char)-1)
#endif
#define BASELINE v2
#define BASELINE_NAME "x86-64-v2"
#define TARGET __attribute__((target("arch=x86-64-v3")))
#define VECTOR 32
#define PRODUCTS(a, b) MULTIPLY(__builtin_ia32_pmuludq256, a, b)
#define APART(a, b) (Lanes) __builtin_ia32_psadbw256((Bytes)(a), (Bytes)(b))
namespace v3 {
#include "tiles.h"
}
#undef TARGET
#undef VECTOR
#undef PRODUCTS
#undef APART
#define TARGET __attribute__((target("arch=x86-64-v4,avx512vbmi,prefer-vector-width=512")))
#define VECTOR 64
#define PRODUCTS(a, b) MULTIPLY(MULTIPLY_512, a, b)
#define APART(a, b) (Lanes) __builtin_ia32_psadbw512((Bytes)(a), (Bytes)(b))
namespace v4 {
#include "tiles.h"
}
#undef TARGET
#undef VECTOR
#undef PRODUCTS
#undef APART
#define TARGET __attribute__((target("arch=x86-64-v2")))
#define VECTOR 16
#define PRODUCTS(a, b) MULTIPLY(__builtin_ia32_pmuludq128, a, b)
#define APART(a, b) (Lanes) __builtin_ia32_psadbw128((Bytes)(a), (Bytes)(b))
#else
#define BASELINE plain
#define BASELINE_NAME "baseline"
#define TARGET
#define VECTOR 16
static inline uint64_t __attribute__((vector_size(16))) plain_apart(uint64_t __attribute__((vector_size(16))) a,
                                                                    uint64_t __attribute__((vector_size(16))) b) {
    for (int lane = 0; lane < 2; ++lane) {
        uint64_t sum = 0;
        for (int shift = 0; shift < 64; shift += 8)
            sum += (uint64_t)std::abs((int)(a[lane] >> shift & 255) - (int)(b[lane] >> shift & 255));
        a[lane] = sum;
    }
    return a;
}
#define PRODUCTS(a, b) PLAIN_PRODUCTS(a, b)
#define APART(a, b) plain_apart(a, b)
#endif
namespace BASELINE {
#include "tiles.h"
}

// The functions of one instruction set.
struct Variant {
    const char *name;
    decltype(&BASELINE::compare_row) compare_row;
    decltype(&BASELINE::update_row) update_row;
    decltype(&BASELINE::finest_row) finest_row;
    decltype(&BASELINE::gather) gather;
};

static Variant choose() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512vbmi"))
        return {"x86-64-v4", v4::compare_row, v4::update_row, v4::finest_row, v4::gather};
    if (__builtin_cpu_supports("x86-64-v3")) return {"x86-64-v3", v3::compare_row, v3::update_row, v3::finest_row, v3::gather};
    if (!__builtin_cpu_supports("x86-64-v2")) return {};
#endif
    return {BASELINE_NAME, BASELINE::compare_row, BASELINE::update_row, BASELINE::finest_row, BASELINE::gather};
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

// Does work(row, marked [cols]) for each row of tiles, on as many threads as the marked ones are worth.
template <class Work> static void share_marked(const Texture &t, const uint8_t *marked, Work work) {
    share(t, std::count(marked, marked + (int64_t)t.rows * t.cols, 1), [&](auto next) {
        for (int row = next(); row >= 0; row = next()) work(row, marked + (int64_t)row * t.cols);
        settle();
    });
}

extern "C" {

// Number of this interface; the caller refuses another one.
int32_t tiles_version() { return 4; }

// The instruction set that is used; null if this processor has none of those compiled.
const char *tiles_set() { return chosen.name; }

// Fills dirty [rows, cols] with 1 for each tile that differs, by the rules of arr_coc/texture/store/raster.py.
void tiles_compare(const Texture *texture, const Plane *frame, int32_t mean, int32_t largest, uint8_t *dirty) {
    const Texture &t = *texture;
    share(t, (int64_t)t.rows * t.cols, [&](auto next) {
        std::vector<uint8_t> peaks((size_t)t.kept[0].width * t.channels);
        std::vector<Hash> hashes((size_t)t.cols);
        std::vector<Lines> sums((size_t)(12 * t.cols + 24 + 7) / 8 * 2);
        bool busy = false;
        for (int row = next(); row >= 0; row = next())
            busy = chosen.compare_row(t, frame, row, mean, largest, busy, {peaks.data(), hashes.data(), sums.data()->lanes},
                                      dirty + (int64_t)row * t.cols);
    });
}

// Writes the tiles whose dirty [rows, cols] is 1, on all levels but level 0, of which `channels` 3 write
// theirs.
void tiles_update(const Texture *texture, const Plane *frame, const uint8_t *dirty) {
    const Texture &t = *texture;
    share_marked(t, dirty, [&](int row, const uint8_t *marked) { chosen.update_row(t, frame, row, marked); });
}

// Updates level 0 of the tiles whose stale [rows, cols] is 1, from the kept planes.
void tiles_finest(const Texture *texture, const uint8_t *stale) {
    const Texture &t = *texture;
    share_marked(t, stale, [&](int row, const uint8_t *marked) { chosen.finest_row(t, row, marked); });
}

// The pixels of regions int64 [count, 3] (shape, row, col): uint8 [count, 3, 32, 32]. `footprints` int32 [shapes, 3]
// (level, down, across).
void tiles_gather(const Texture *texture, const int64_t *regions, int64_t count, const int32_t *footprints,
                  uint8_t *out) {
    chosen.gather(*texture, regions, count, footprints, out);
}
}
