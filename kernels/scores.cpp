// Channels, scores and relevance of a picture in host memory, and maps over time. A plain C interface, called with ctypes
// (arr_coc/relevance/compiled_channels.py and compiled_scores.py, arr_coc/allocation/compiled_maps.py), which has checked
// sizes. Channels but saliency are those of arr_coc/relevance/channels.py bit for bit, the others those of the modules that
// they are named after within rounding.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

// Texels of level 1 on a tile's side; widths of the scorers' layers; channels and entropy; the clusters' channel, which
// is kept behind the others.
constexpr int SIDE = 16, HIDDEN = 32, HIDDEN_BOTH = 64, NARROW = 16, PLANES = 14, CLUSTERS = 12;

// The levels of a texture, uint8 RGB, and what is made of them. `stale` uint8 [rows, cols] says which tiles changed;
// `luma` uint8 [16·rows + 2, 16·cols + 2] is kept; `sums` int32 [9, rows, cols], `lines` float32 [18, cols] and `colours`
// float64 [3, rows·cols, up to eights] are used meanwhile; `channels` float32 [13, rows, cols] and `entropy` hold the frame
// before. `count_log` int64 [257], the scales, and the clusters' first `centres` [4, 3] and `steps` are those of
// arr_coc/relevance/channels.py.
struct Picture {
    int32_t rows, cols, steps;
    const uint8_t *level1, *level2, *level4, *level5, *stale;
    uint8_t *luma;
    int32_t *sums;
    float *lines;
    double *colours;
    float *channels, *entropy;
    const int64_t *count_log;
    const float *centres;
    double entropy_scale;
    float variance_scale, magnitude_scale, diagonal;
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

// A grid of tiles; maps of it are float32 [rows, cols].
struct Grid {
    int32_t rows, cols;
    int64_t tiles() const { return int64_t(rows) * cols; }
};

// Earlier places of tiles, and their last motion, of a warp and of that of a frame more: [2, rows, cols].
struct Ways {
    const float *origin, *newest, *newer_origin, *newer_newest;
};

// A frame's relevance and looks [count, rows, cols], those of the frame before, and by how much to blend them.
struct Blend {
    const float *origin, *blended, *held, *looked, *current, *looks;
    int32_t count;
    float share, renewal, band;
    float *scratch;
};

// What answers taught: [2, rows, cols], when, how sure, and how tiles looked then.
struct Learned {
    const float *origin, *known;
    const double *learned_ns;
    const float *confidence, *looked;
    float renewal;
    double fade_s;
    float *scratch;
};

// Limits of the guard, as arr_coc/allocation/structure.py has them. `surfaces` [rows · cols, 6]: what is taken away of a picture;
// null: a map is judged as it is. `clear`: nothing else needs to be measured then. `rest` [rows, cols] is used meanwhile.
struct Guard {
    const float *surfaces, *least;
    float step, edges, clear;
    float *rest;
};

#define INLINE TARGET __attribute__((always_inline)) static inline

// A wider vector than the set's registers goes through memory, which is several times slower.
#define OUTPUTS 8
#if defined(__x86_64__)
#define LANES 4
#define TARGET __attribute__((target("arch=x86-64-v2")))
namespace v2 {
#include "scores.h"
#include "maps.h"
}
#undef TARGET
#undef LANES
#define LANES 8
#define TARGET __attribute__((target("arch=x86-64-v3")))
namespace v3 {
#include "scores.h"
#include "maps.h"
}
#undef TARGET
#undef LANES
#define LANES 16
#define TARGET __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
namespace v4 {
#include "scores.h"
#include "maps.h"
}
#else
#define LANES 4
#define TARGET
namespace plain {
#include "scores.h"
#include "maps.h"
}
#endif

// The functions of one instruction set.
struct Variant {
    const char *name;
    void (*channels)(const Picture &);
    void (*picture)(const Scorer &, const float *, const float *, float *);
    int32_t (*balance)(const Balance &, const float *, float *, float *, float *);
    void (*nearest)(const Grid &, const float *, const void *, int32_t, int32_t, const void *, void *);
    void (*then)(const Grid &, const Ways &, float, float, float *, uint8_t *, float *);
    int32_t (*steps)(const Grid &, const float *, float, float, float *, float *, int32_t *, uint8_t *);
    int32_t (*blend)(const Grid &, const Blend &, float *, float *, float *);
    void (*recall)(const Grid &, const Learned &, const float *, int32_t, double, float *);
    int32_t (*drift)(const Grid &, const float *, const float *, float, float *);
    double (*changed)(const Grid &, const int64_t *, const int64_t *, const float *);
    float (*structure)(const Grid &, const Guard &, const float *);
};

#define VARIANT(name, set) \
    { name, set::channels, set::picture, set::balance, set::nearest, set::then, set::steps, set::blend, set::recall, \
      set::drift, set::changed, set::structure }

static Variant choose() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("x86-64-v4")) return VARIANT("x86-64-v4", v4);
    if (__builtin_cpu_supports("x86-64-v3")) return VARIANT("x86-64-v3", v3);
    if (__builtin_cpu_supports("x86-64-v2")) return VARIANT("x86-64-v2", v2);
    return {};
#else
    return VARIANT("baseline", plain);
#endif
}

static const Variant chosen = choose();

extern "C" {

// Number of this interface; the caller refuses another one.
int32_t scores_version() { return 4; }

// Name of the instruction set; null if the processor has none of them.
const char *scores_set() { return chosen.name; }

// Updates channels (but position) and entropy of stale tiles.
void scores_channels(const Picture *picture) { chosen.channels(*picture); }

// Information, perspective and, with a question, participation of channels and entropy: float32 [3, rows, cols].
void scores_picture(const Scorer *scorer, const float *channels, const float *entropy, float *scores) {
    chosen.picture(*scorer, channels, entropy, scores);
}

// Weights [3] and relevance [rows, cols] of scores, with a prior [3, rows, cols] or null; participation is filled in
// if it is not learned. Returns 0 if relevance is not finite everywhere.
int32_t scores_balance(const Balance *balance, const float *prior, float *scores, float *weights, float *relevance) {
    return chosen.balance(*balance, prior, scores, weights, relevance);
}

// Maps [count, rows, cols] of an earlier frame as they lie now, of values of `size` bytes that do not mix: those of the nearest
// tile; `entering` for those that come into view.
void maps_nearest(int32_t rows, int32_t cols, const float *origin, const void *values, int32_t count, int32_t size,
                  const void *entering, void *out) {
    chosen.nearest({rows, cols}, origin, values, count, size, entering, out);
}

// Origins of a warp and that of a frame more; `way` [2, rows, cols] and `marked` uint8 [rows, cols] are used meanwhile.
void maps_then(int32_t rows, int32_t cols, const float *origin, const float *newest, const float *newer_origin,
               const float *newer_newest, float apart, float near, float *way, uint8_t *marked, float *out) {
    chosen.then({rows, cols}, {origin, newest, newer_origin, newer_newest}, apart, near, way, marked, out);
}

// Adds motion to what is `left` [2, rows, cols]. Returns 1 if some is due in whole tiles, which are then in `whole`.
int32_t maps_steps(int32_t rows, int32_t cols, const float *origin, float at_tiles, float with_tiles, float *left, float *whole,
                   int32_t *queue, uint8_t *due) {
    return chosen.steps({rows, cols}, origin, at_tiles, with_tiles, left, whole, queue, due);
}

// A frame's relevance blended with the past, which moved by `origin` or, null, did not, into `blended` and `kept`. `largest` is
// how far blended is from it at most. Returns 1 if a tile left the dead band. `scratch` holds [count + 1, rows, cols].
int32_t maps_blend(int32_t rows, int32_t cols, const float *origin, const float *past, const float *held, const float *looked,
                   const float *current, const float *looks, int32_t count, float share, float renewal, float band,
                   float *scratch, float *blended, float *kept, float *largest) {
    const Blend blend = {origin, past, held, looked, current, looks, count, share, renewal, band, scratch};
    return chosen.blend({rows, cols}, blend, blended, kept, largest);
}

// The prior [3, rows, cols] of a frame at a time, whose tiles look so: [count, rows, cols]. What was learned lies on the grid
// from which `origin` leads here; null: on this one. `scratch` holds [count + 1, rows, cols].
void maps_recall(int32_t rows, int32_t cols, const float *origin, const float *known, const double *learned_ns,
                 const float *confidence, const float *looked, const float *looks, int32_t count, double now_ns, float renewal,
                 double fade_s, float *scratch, float *prior) {
    const Learned learned = {origin, known, learned_ns, confidence, looked, renewal, fade_s, scratch};
    chosen.recall({rows, cols}, learned, looks, count, now_ns, prior);
}

// Values that are farther than `band` from what is kept take its place in `out`. Returns 1 if there are any.
int32_t maps_drift(int32_t rows, int32_t cols, const float *values, const float *kept, float band, float *out) {
    return chosen.drift({rows, cols}, values, kept, band, out);
}

// Share of relevance on tiles whose version is another than the marked one; of the tiles if nothing is relevant.
double maps_changed(int32_t rows, int32_t cols, const int64_t *marked, const int64_t *versions, const float *relevance) {
    return chosen.changed({rows, cols}, marked, versions, relevance);
}

// Distance from noise, in [0, 1], of a picture's looks [7, rows, cols] without the `surfaces`; of a map, if these are null.
// At least `clear` is as good as 1: other maps are not measured then.
float maps_structure(int32_t rows, int32_t cols, const float *maps, const float *surfaces, const float *least, float step,
                     float edges, float clear, float *rest) {
    return chosen.structure({rows, cols}, {surfaces, least, step, edges, clear, rest}, maps);
}
}
