// Channels, scores and relevance of a picture in host memory. A plain C interface, called with ctypes
// (arr_coc/relevance/compiled_channels.py and compiled_scores.py), which has checked sizes. Channels but saliency are those of
// arr_coc/relevance/channels.py bit for bit, scores those of the modules in arr_coc/relevance within rounding.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

// Texels of level 1 on a tile's side; widths of the scorers' layers; channels and entropy; the clusters' channel, which
// is kept behind the others.
constexpr int SIDE = 16, HIDDEN = 32, HIDDEN_BOTH = 64, NARROW = 16, PLANES = 14, CLUSTERS = 12, LANES = 16;

// The levels of a texture, uint8 RGB, and what is made of them. `stale` uint8 [rows, cols] says which tiles changed;
// `luma` uint8 [16·rows + 2, 16·cols + 2] and `sums` int32 [9, rows, cols] are kept or used meanwhile; `channels`
// float32 [13, rows, cols] and `entropy` hold the frame before. `count_log` int64 [257] and the scales are those of
// arr_coc/relevance/channels.py.
struct Picture {
    int32_t rows, cols;
    const uint8_t *level1, *level2, *level4, *level5, *stale;
    uint8_t *luma;
    int32_t *sums;
    float *channels, *entropy;
    const int64_t *count_log;
    double entropy_scale;
    float variance_scale, magnitude_scale;
};

// The scorers' weights in the order in which `picture` reads them, and what is kept from frame to frame: planes of
// `stride` floats a row with a border of one, of channels (`seen` [14]) and of the question's last layers (`asked`
// [16]), and the first layers' sums (`kept`). `film`: a question is heard. `fresh`: nothing is kept yet.
struct Scorer {
    int32_t rows, cols, film, fresh;
    int64_t stride;
    const float *weights;
    float *seen, *kept, *asked;
    uint8_t *changed;
};

// Weights and constants of the balance, as arr_coc/relevance/balancing.py has them. `learned`: participation is learned
// and stands in the third map; `asked`: the question is used; `hears`: learned parts know what contradicts what.
struct Balance {
    int32_t rows, cols, width, learned, asked, hears;
    const float *statistics, *bias, *out, *out_bias;
    float recall[2], weak, doubt, alone, faint, looked_away, looked_at, sure, tiny;
};

#if defined(__x86_64__)
#define OUTPUTS 4
#define TARGET __attribute__((target("arch=x86-64-v2")))
namespace v2 {
#include "scores.h"
}
#undef TARGET
#define TARGET __attribute__((target("arch=x86-64-v3")))
namespace v3 {
#include "scores.h"
}
#undef TARGET
#undef OUTPUTS
#define OUTPUTS 8
#define TARGET __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
namespace v4 {
#include "scores.h"
}
#else
#define OUTPUTS 4
#define TARGET
namespace plain {
#include "scores.h"
}
#endif

// The functions of one instruction set.
struct Variant {
    const char *name;
    void (*channels)(const Picture &);
    void (*picture)(const Scorer &, const float *, const float *, float *);
    int32_t (*balance)(const Balance &, const float *, float *, float *, float *);
};

static Variant choose() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("x86-64-v4")) return {"x86-64-v4", v4::channels, v4::picture, v4::balance};
    if (__builtin_cpu_supports("x86-64-v3")) return {"x86-64-v3", v3::channels, v3::picture, v3::balance};
    if (__builtin_cpu_supports("x86-64-v2")) return {"x86-64-v2", v2::channels, v2::picture, v2::balance};
    return {nullptr, nullptr, nullptr, nullptr};
#else
    return {"baseline", plain::channels, plain::picture, plain::balance};
#endif
}

static const Variant chosen = choose();

extern "C" {

// Number of this interface; the caller refuses another one.
int32_t scores_version() { return 1; }

// Name of the instruction set; null where the processor has none of them.
const char *scores_set() { return chosen.name; }

// Brings channels (but position and clusters) and entropy up to date where tiles are stale.
void scores_channels(const Picture *picture) { chosen.channels(*picture); }

// Information, perspective and, with a question, participation of channels and entropy: float32 [3, rows, cols].
void scores_picture(const Scorer *scorer, const float *channels, const float *entropy, float *scores) {
    chosen.picture(*scorer, channels, entropy, scores);
}

// Weights [3] and relevance [rows, cols] of scores, with a prior [3, rows, cols] or null; participation is filled in
// where it is not learned. Returns 0 where relevance is not finite everywhere.
int32_t scores_balance(const Balance *balance, const float *prior, float *scores, float *weights, float *relevance) {
    return chosen.balance(*balance, prior, scores, weights, relevance);
}
}
