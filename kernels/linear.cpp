// Linear layers whose weights have 8 or 4 bits. A plain C interface, called with ctypes (arr_coc/qwen/small_weights/kernel.py),
// which has checked sizes. Rows are quantised to 8 bits, so that products are the processor's of 8 bits, summed exactly;
// results are those of the reference there within rounding.
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

// Weights [outputs, inputs] as codes of 8 or 4 bits; inputs are `padded` to whole groups, which share a scale and a least
// weight, and outputs to 64. For a set of instructions with L lanes, L outputs are a block for each group. Of each
// output it holds 4 bytes at a time: the codes of 4 inputs; or those of 8 inputs, the first 4 in the lower halves. Scales
// and least weights follow, bfloat16 in 4 bits and float32 in 8. `bias` float32 [outputs] may be null.
struct Weights {
    int64_t inputs, padded, outputs, group, bits;
    const uint8_t *packed;
    const float *bias;
};

// Columns of weights in float32: `places` [inputs] says which row of `kept` [any number, outputs] has those of an input. If it
// is below 0, they are expanded from `weights`, which may be null if there is no such input.
struct Columns {
    int64_t inputs, outputs;
    const int64_t *places;
    const float *kept;
    const Weights *weights;
};

// Rows in 8 bits: values [rows, padded], scales and shifts [rows, groups].
struct Values {
    int8_t *values;
    float *scales, *shifts;
};

// Bytes of a line of the cache: loads of a tile that begin elsewhere take twice as long.
struct alignas(64) Line {
    uint8_t bytes[64];
};

// Outputs to which a thread adds columns of weights at once.
constexpr int64_t ADDED = 512;

#define INLINE TARGET __attribute__((always_inline)) static inline

#if defined(__x86_64__)
#define LANES 16
#define TILE4 6
#define TILE8 12
#define WIDE 2
#define TARGET __attribute__((target("arch=x86-64-v4,avx512vnni,prefer-vector-width=512")))
#define DOT(sums, codes, values) ((ints)_mm512_dpbusd_epi32((__m512i)(sums), (__m512i)(codes), (__m512i)(values)))
namespace v4 {
#include "linear.h"
}
namespace amx {
#include "amx.h"
#include "linear_amx.h"
}
#undef LANES
#undef TILE4
#undef TILE8
#undef WIDE
#undef TARGET
#undef DOT
#define LANES 8
#define TILE4 2
#define TILE8 4
#define WIDE 2
#define TARGET __attribute__((target("arch=x86-64-v3,avxvnni")))
#define DOT(sums, codes, values) ((ints)_mm256_dpbusd_avx_epi32((__m256i)(sums), (__m256i)(codes), (__m256i)(values)))
namespace v3_vnni {
#include "linear.h"
}
#undef TARGET
#undef DOT
#define TARGET __attribute__((target("arch=x86-64-v3")))
// Sums of two products fit into 16 bits if codes have 4.
#define DOT(sums, codes, values) \
    ((sums) + (ints)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)(codes), (__m256i)(values)), _mm256_set1_epi16(1)))
namespace v3 {
#include "linear.h"
}
#undef LANES
#undef TILE4
#undef TILE8
#undef WIDE
#undef TARGET
#undef DOT
#endif
#define LANES 4
#define TILE4 2
#define TILE8 2
#define WIDE 2
#define TARGET
namespace plain {
static inline int32_t __attribute__((vector_size(16))) dot(int32_t __attribute__((vector_size(16))) sums,
                                                           uint8_t __attribute__((vector_size(16))) codes,
                                                           int8_t __attribute__((vector_size(16))) values) {
    for (int i = 0; i < 16; i++) sums[i / 4] += codes[i] * values[i];
    return sums;
}
#define DOT(sums, codes, values) \
    dot(sums, (uint8_t __attribute__((vector_size(16))))(codes), (int8_t __attribute__((vector_size(16))))(values))
#include "linear.h"
}

// The functions of one instruction set; that for 8 bits is null if its products of them are not exact. `outputs` of a block.
// `wide4` multiplies weights in 4 bits with many rows that have one scale each; null if the groups of rows keep theirs.
struct Variant {
    const char *name;
    int64_t outputs;
    decltype(&plain::quantise) quantise;
    decltype(&plain::activate) activate;
    decltype(&plain::normalise) normalise;
    decltype(&plain::outlier_limit) outlier_limit;
    decltype(&plain::add_columns) add_columns;
    decltype(&plain::column<4>) column4, column8;
    decltype(&plain::panel<4>) panel4, panel8, wide4;
};

#define VARIANT(name, set, panel8, wide4) \
    {name, set::OUTPUTS, set::quantise, set::activate, set::normalise, set::outlier_limit, set::add_columns, set::column<4>, set::column<8>, set::panel<4>, panel8, wide4}
static const Variant variants[] = {
#if defined(__x86_64__)
    VARIANT("AMX", v4, amx::panel8, amx::wide4),
    VARIANT("x86-64-v4 with VNNI", v4, v4::panel<8>, nullptr),
    VARIANT("x86-64-v3 with VNNI", v3_vnni, v3_vnni::panel<8>, nullptr),
    VARIANT("x86-64-v3", v3, nullptr, nullptr),
#endif
    VARIANT("baseline", plain, plain::panel<8>, nullptr),
};

static const Variant &choose() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512vnni")) return variants[amx::is_available ? 0 : 1];
    if (!__builtin_cpu_supports("x86-64-v3")) return variants[4];
    return variants[__builtin_cpu_supports("avxvnni") ? 2 : 3];
#else
    return variants[0];
#endif
}

static const Variant &chosen = choose();

// Rows that are multiplied at most before the next ones are quantised, so that they stay in a core's second cache; and those behind
// the last one that an instruction set may read, though it does not use them.
constexpr int64_t ROWS = 320, SLACK = 31;

// Rows from which on weights in 4 bits are widened, where the instruction set does so.
constexpr int64_t WIDENED_ROWS = 16;

// Rows from which on threads share a search for outliers, a norm or an activation, and channels that a thread takes at once.
constexpr int64_t SHARED_ROWS = 8, CHANNELS = 256;

// What `linear_outliers` found.
static thread_local std::vector<int64_t> outliers;

// Rows float32 [any number, inputs] as they are quantised: after their activation, if there is one (1), whose `gates`, likewise, may
// be null; with zeros in the channels `left_out`; and unless `ratio` is above 0 and a value stands out by it.
struct Rows {
    const float *values, *gates;
    int64_t inputs;
    int32_t activation;
    const int64_t *left_out;
    int64_t left_count;
    float ratio;
};

// Quantises the row number `number`. Returns true, and does not, if a value stands out.
static bool quantise_row(const Rows &from, int64_t number, int64_t padded, int64_t group, const Values &to) {
    static thread_local std::vector<float> copy;
    const float *row = from.values + number * from.inputs;
    if (from.activation || from.left_count) copy.resize(std::max(copy.size(), size_t(from.inputs)));
    if (from.activation) {
        chosen.activate(row, from.gates == nullptr ? nullptr : from.gates + number * from.inputs, from.inputs, copy.data());
        row = copy.data();
    }
    if (from.ratio > 0 && chosen.outlier_limit(row, from.inputs, from.ratio) < INFINITY) return true;
    if (from.left_count) {
        if (row != copy.data()) std::copy(row, row + from.inputs, copy.data());
        for (int64_t c = 0; c < from.left_count; c++) copy[size_t(from.left_out[c])] = 0;
        row = copy.data();
    }
    chosen.quantise(row, from.inputs, padded, group, to);
    return false;
}

extern "C" {

// Number of this interface; the caller refuses another one.
int32_t linear_version() { return 6; }

// The instruction set that is used.
const char *linear_set() { return chosen.name; }

// The number of outputs of a block of packed weights.
int32_t linear_outputs() { return int32_t(chosen.outputs); }

// Whether weights of 8 bits can be multiplied.
int32_t linear_takes_8_bits() { return chosen.panel8 != nullptr; }

// Multiplies rows by weights and adds the bias: out float32 [count, outputs]. Returns 1 and goes no further if a value stands out;
// else 0.
int32_t linear_product(const Weights *weights, const Rows *rows, int64_t count, float *out) {
    const Weights &w = *weights;
    static thread_local std::vector<Line> held;
    static thread_local std::vector<float> scales;
    const bool wide = w.bits == 4 && chosen.wide4 != nullptr && count >= WIDENED_ROWS;
    const auto panel = w.bits == 8 ? chosen.panel8 : wide ? chosen.wide4 : chosen.panel4;
    const int64_t parts = (count + ROWS - 1) / ROWS, most = ((count + parts - 1) / parts + 31) / 32 * 32;
    const int64_t group = wide ? w.padded : w.group, groups = w.padded / group;
    held.resize(std::max(held.size(), size_t((most + SLACK) * w.padded) / sizeof(Line) + 1));
    scales.resize(std::max(scales.size(), size_t(2 * (most + SLACK) * groups)));
    const Values values = {(int8_t *)held.data(), scales.data(), scales.data() + (most + SLACK) * groups};
    for (int64_t first = 0; first < count; first += most) {
        const int64_t part = std::min(most, count - first);
        bool found = false;
#pragma omp parallel
        {
#pragma omp for reduction(|| : found)
            for (int64_t row = 0; row < part; row++)
                found = quantise_row(*rows, first + row, w.padded, group,
                                     {values.values + row * w.padded, values.scales + row * groups, values.shifts + row * groups}) ||
                        found;
            if (!found) {
#pragma omp for
                for (int64_t output = 0; output < w.outputs; output += chosen.outputs)
                    panel(w, values, part, output, out + first * w.outputs);
            }
        }
        if (found) return 1;
    }
    return 0;
}

// Quantises rows: values uint8 [count, inputs], of which 128 is 0, times scales [count]. Returns as `linear_product`.
int32_t linear_quantise(const Rows *rows, int64_t count, uint8_t *values, float *scales) {
    const int64_t inputs = rows->inputs;
    bool found = false;
#pragma omp parallel for reduction(|| : found)
    for (int64_t row = 0; row < count; row++) {
        uint8_t *to = values + row * inputs;
        float shift;
        found = quantise_row(*rows, row, inputs, inputs, {(int8_t *)to, scales + row, &shift}) || found;
        for (int64_t k = 0; k < inputs; k++) to[k] ^= 128;
    }
    return found;
}

// Writes rows after their activation, which they have: out float32 [count, inputs].
void linear_activate(const Rows *rows, int64_t count, float *out) {
    const int64_t inputs = rows->inputs;
#pragma omp parallel for if (count >= SHARED_ROWS)
    for (int64_t row = 0; row < count; row++)
        chosen.activate(rows->values + row * inputs, rows->gates == nullptr ? nullptr : rows->gates + row * inputs, inputs, out + row * inputs);
}

// Divides each row float32 [count, width] by the root of its mean square, with epsilon added to that, times weights [width].
void linear_normalise(const float *rows, int64_t count, int64_t width, const float *weights, float epsilon, float *out) {
#pragma omp parallel for if (count >= SHARED_ROWS)
    for (int64_t row = 0; row < count; row++) chosen.normalise(rows + row * width, weights, width, epsilon, out + row * width);
}

// Finds channels of rows float32 [count, inputs] with values that stand out of their row: more than `ratio` times as large as
// its others are on average. Takes at most `most` of them, in order: those with the largest sum of squares of these values
// relative to their rows. Returns their number.
int64_t linear_outliers(const float *rows, int64_t count, int64_t inputs, float ratio, int64_t most) {
    static thread_local std::vector<float> limits, sums;
    limits.resize(size_t(count));
    float *const limit = limits.data();
    bool found = false;
    outliers.clear();
#pragma omp parallel for if (count >= SHARED_ROWS) reduction(|| : found)
    for (int64_t row = 0; row < count; row++) {
        limit[row] = chosen.outlier_limit(rows + row * inputs, inputs, ratio);
        found = found || limit[row] < INFINITY;
    }
    if (!found) return 0;
    sums.assign(size_t(inputs), 0);
    float *const sum = sums.data();
#pragma omp parallel for if (count >= SHARED_ROWS)
    for (int64_t first = 0; first < inputs; first += CHANNELS) {
        const int64_t last = std::min(first + CHANNELS, inputs);
        for (int64_t row = 0; row < count; row++) {
            if (limit[row] == INFINITY) continue;
            const float *values = rows + row * inputs, factor = 1 / limit[row];
            for (int64_t k = first; k < last; k++) {
                const float part = values[k] * factor, square = part * part;
                sum[k] += square > 1 ? square : 0;
            }
        }
    }
    for (int64_t k = 0; k < inputs; k++)
        if (sum[k] > 0) outliers.push_back(k);
    if (int64_t(outliers.size()) > most) {
        const auto larger = [sum](int64_t a, int64_t b) { return sum[a] != sum[b] ? sum[a] > sum[b] : a < b; };
        std::nth_element(outliers.begin(), outliers.begin() + most, outliers.end(), larger);
        outliers.resize(size_t(most));
        std::sort(outliers.begin(), outliers.end());
    }
    return int64_t(outliers.size());
}

// Copies the channels that this thread found last.
void linear_outlier_channels(int64_t *channels) { std::copy(outliers.begin(), outliers.end(), channels); }

// Adds the products of n channels of rows float32 [count, inputs] to out float32 [count, outputs].
void linear_add(const Columns *from, const float *rows, int64_t count, const int64_t *channels, int64_t n, float *out) {
    static thread_local std::vector<float> expanded, gathered;
    static thread_local std::vector<const float *> found;
    const int64_t inputs = from->inputs, outputs = from->outputs;
    const auto column = from->weights != nullptr && from->weights->bits == 4 ? chosen.column4 : chosen.column8;
    int64_t missing = 0;
    for (int64_t c = 0; c < n; c++) missing += from->places[channels[c]] < 0;
    expanded.resize(size_t(missing * outputs));
    gathered.resize(size_t(count * n));
    found.clear();
    float *next = expanded.data(), *const values = gathered.data();
    for (int64_t c = 0; c < n; c++) {
        const int64_t channel = channels[c], place = from->places[channel];
        for (int64_t row = 0; row < count; row++) values[row * n + c] = rows[row * inputs + channel];
        if (place < 0) {
            column(*from->weights, channel, next);
            found.push_back(next);
            next += outputs;
        } else {
            found.push_back(from->kept + place * outputs);
        }
    }
    const float *const *columns = found.data();
#pragma omp parallel for if (count * n >= SHARED_ROWS)
    for (int64_t output = 0; output < outputs; output += ADDED)
        chosen.add_columns(values, columns, n, count, outputs, output, out);
}
}
