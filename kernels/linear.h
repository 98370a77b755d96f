// Linear layers with small weights, for one instruction set: included once for each, in a namespace of its own, with TARGET
// the attribute that names the set, LANES the int32 of its registers, TILE rows and WIDE blocks that are multiplied at once,
// and DOT(sums, codes, values), which adds to each int32 the products of its four unsigned codes and signed values.

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef int8_t bytes __attribute__((vector_size(LANES)));

template <class Vector> INLINE Vector load(const void *from) {
    Vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// The first `count` numbers, and zeros.
INLINE vec load_some(const float *from, int64_t count) {
    if (count >= LANES) return load<vec>(from);
    vec value = {};
    std::memcpy(&value, from, size_t(count) * 4);
    return value;
}

INLINE vec widened(const uint8_t *from) {
    const ints bits = __builtin_convertvector(load<halves>(from), ints) << 16;
    return load<vec>(&bits);
}

// A row in 8 bits: its `padded` values, and for each group a scale, and that times the sum of its values. A group that
// holds NaN or infinity gets a scale that is NaN.
TARGET static void quantise(const float *row, int64_t inputs, int64_t padded, int64_t group, const Values &to) {
    for (int64_t first = 0; first < padded; first += group) {
        const int64_t last = std::min(first + group, inputs);
        vec top = {}, other = {};
        for (int64_t k = first; k < last; k += LANES) {
            const vec value = load_some(row + k, last - k), size = value < 0 ? -value : value;
            top = size > top ? size : top;
            other += value - value;
        }
        float most = 0, nothing = 0;
        for (int lane = 0; lane < LANES; lane++) most = std::max(most, top[lane]), nothing += other[lane];
        const float factor = nothing == 0 && most > 1e-30f ? 127 / most : 0;
        ints sums = {};
        std::memset(to.values + first, 0, size_t(group));
        for (int64_t k = first; factor != 0 && k < last; k += LANES) {
            const vec value = load_some(row + k, last - k) * factor;
            const ints whole = __builtin_convertvector(value + 12582912.0f - 12582912.0f, ints);  // rounded: so large a sum has no fraction
            const bytes narrow = __builtin_convertvector(whole, bytes);
            sums += whole;
            std::memcpy(to.values + k, &narrow, size_t(std::min<int64_t>(LANES, last - k)));
        }
        int32_t sum = 0;
        for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
        to.scales[first / group] = most / 127 + nothing;
        to.shifts[first / group] = to.scales[first / group] * float(sum);
    }
}

// Values times the logistic function of others: 2^x by a polynomial on [-0.5, 0.5], off by 2e-7 at most.
INLINE vec times_logistic(vec values, vec of) {
    vec power = of * -1.44269504f;
    power = power > 126.0f ? vec{} + 126.0f : power < -126.0f ? vec{} - 126.0f : power;
    const vec whole = power + 12582912.0f - 12582912.0f, x = power - whole;
    const vec fraction = 1 + x * (0.69314718f + x * (0.24022651f + x * (0.05550411f + x * (0.0096181291f + x * (0.0013333558f + x * 0.00015403530f)))));
    const ints bits = (__builtin_convertvector(whole, ints) + 127) << 23;
    return values / (1 + fraction * load<vec>(&bits));
}

// A row after its activation: GELU by tanh without gates; with gates, times their SiLU.
TARGET static void activate(const float *row, const float *gates, int64_t inputs, float *to) {
    for (int64_t k = 0; k < inputs; k += LANES) {
        const vec x = load_some(row + k, inputs - k);
        const vec gate = gates == nullptr ? x : load_some(gates + k, inputs - k);
        // tanh(u) is 2 / (1 + exp(-2u)) - 1
        const vec of = gates == nullptr ? x * (1.59576912f + 0.0713548163f * x * x) : gate;
        const vec result = gates == nullptr ? times_logistic(x, of) : x * times_logistic(gate, of);
        std::memcpy(to + k, &result, size_t(std::min<int64_t>(LANES, inputs - k)) * 4);
    }
}

// A row divided by the root of its mean square, times weights.
TARGET static void normalise(const float *row, const float *weights, int64_t count, float epsilon, float *to) {
    vec total[2] = {};
    for (int64_t k = 0; k < count; k += LANES) {
        const vec value = load_some(row + k, count - k);
        total[k / LANES % 2] += value * value;
    }
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += total[0][lane] + total[1][lane];
    const float factor = 1 / std::sqrt(sum / float(count) + epsilon);
    for (int64_t k = 0; k < count; k += LANES) {
        const vec result = load_some(row + k, count - k) * factor * load_some(weights + k, count - k);
        std::memcpy(to + k, &result, size_t(std::min<int64_t>(LANES, count - k)) * 4);
    }
}

// The size above which a value of a row stands out: `ratio` times the mean size of the others. Infinity if none does, or if
// one is NaN or infinity.
TARGET static float outlier_limit(const float *row, int64_t inputs, float ratio) {
    float limit = INFINITY;
    // What stands out counts as the limit from the second time on, so that many such values do not hide smaller ones.
    for (int time = 0; time < 3; time++) {
        vec top = {}, total[2] = {};
        for (int64_t k = 0; k < inputs; k += LANES) {
            const vec value = load_some(row + k, inputs - k), size = value < 0 ? -value : value;
            top = size > top ? size : top;
            total[k / LANES % 2] += size > limit ? vec{} + limit : size;
        }
        float most = 0, sum = 0;
        for (int lane = 0; lane < LANES; lane++) most = std::max(most, top[lane]), sum += total[0][lane] + total[1][lane];
        limit = ratio * sum / float(inputs);
        if (!(most > limit)) return INFINITY;
    }
    return limit;
}

// Outputs of a block.
constexpr int OUTPUTS = WIDE * LANES;

// The weights of an input, expanded, for all outputs.
template <int BITS> TARGET static void column(const Weights &w, int64_t input, float *out) {
    constexpr int TAKEN = 32 / BITS, NUMBER = BITS == 4 ? 2 : 4;
    const int64_t codes_size = w.group * BITS / 8 * OUTPUTS, group_size = codes_size + 2 * NUMBER * OUTPUTS;
    const int64_t k = input % w.group;
    const int shift = int(k % 4 * 8 + k % TAKEN / 4 * 4), mask = (1 << BITS) - 1;
    const uint8_t *group = w.packed + input / w.group * group_size;
    for (int64_t output = 0; output < w.outputs; output += OUTPUTS, group += w.padded / w.group * group_size) {
        for (int c = 0; c < WIDE; c++) {
            const int64_t first = output + c * LANES, count = std::min<int64_t>(LANES, w.outputs - first);
            if (count <= 0) return;
            const uint8_t *codes = group + (k / TAKEN * OUTPUTS + c * LANES) * 4, *scales = group + codes_size + c * NUMBER * LANES;
            const uint8_t *leasts = scales + NUMBER * OUTPUTS;
            const vec scale = BITS == 4 ? widened(scales) : load<vec>(scales), least = BITS == 4 ? widened(leasts) : load<vec>(leasts);
            const vec values = __builtin_convertvector((load<ints>(codes) >> shift) & mask, vec) * scale + least;
            std::memcpy(out + first, &values, size_t(count) * 4);
        }
    }
}

// Adds the products of `values` [n] and n columns of weights to WIDTH times LANES outputs from `output` on; `count` of the last.
template <int WIDTH> INLINE void add_to_row(const float *values, const float *const *columns, int64_t n, int64_t output,
                                            int64_t count, float *to) {
    vec sums[WIDTH];
    for (int c = 0; c < WIDTH; c++) sums[c] = c < WIDTH - 1 ? load<vec>(to + c * LANES) : load_some(to + c * LANES, count);
    for (int64_t i = 0; i < n; i++) {
        const float *column = columns[i] + output;
        for (int c = 0; c < WIDTH; c++)
            sums[c] += values[i] * (c < WIDTH - 1 ? load<vec>(column + c * LANES) : load_some(column + c * LANES, count));
    }
    std::memcpy(to, sums, sizeof sums - sizeof(vec));
    std::memcpy(to + (WIDTH - 1) * LANES, &sums[WIDTH - 1], size_t(std::min<int64_t>(count, LANES)) * 4);
}

// Adds the products of `values` [count, n] and n columns of weights to the ADDED outputs from `output` on.
TARGET static void add_columns(const float *values, const float *const *columns, int64_t n, int64_t count, int64_t outputs,
                               int64_t output, float *out) {
    const int64_t last = std::min(output + ADDED, outputs);
    for (int64_t row = 0; row < count; row++, values += n, out += outputs) {
        int64_t first = output;
        for (; last - first >= 8 * LANES; first += 8 * LANES) add_to_row<8>(values, columns, n, first, LANES, out + first);
        for (; first < last; first += LANES) add_to_row<1>(values, columns, n, first, last - first, out + first);
    }
}

// The outputs of a block from `output` on for ROWS rows.
template <int BITS, int ROWS> INLINE void tile(const Weights &w, const Values &from, int64_t output, float *out) {
    constexpr int TAKEN = 32 / BITS, NUMBER = BITS == 4 ? 2 : 4;
    const int64_t groups = w.padded / w.group;
    const uint8_t *codes = w.packed + output * (w.padded / 2 * BITS / 4 + groups * 2 * NUMBER);
    vec total[WIDE][ROWS] = {};
    for (int64_t group = 0; group < groups; group++) {
        const int8_t *values = from.values + group * w.group;
        ints sums[WIDE][ROWS] = {};
        for (int64_t k = 0; k < w.group; k += TAKEN, codes += 4 * OUTPUTS) {
            ints low[WIDE], high[WIDE];
            for (int c = 0; c < WIDE; c++) {
                low[c] = load<ints>(codes + c * 4 * LANES);
                if (BITS == 4) high[c] = (low[c] >> 4) & 0x0f0f0f0f, low[c] &= 0x0f0f0f0f;
            }
            for (int r = 0; r < ROWS; r++) {
                const ints value = ints{} + load<int32_t>(values + r * w.padded + k);
                for (int c = 0; c < WIDE; c++) sums[c][r] = DOT(sums[c][r], low[c], value);
                if (BITS == 4) {
                    const ints next = ints{} + load<int32_t>(values + r * w.padded + k + 4);
                    for (int c = 0; c < WIDE; c++) sums[c][r] = DOT(sums[c][r], high[c], next);
                }
            }
        }
        for (int c = 0; c < WIDE; c++) {
            const uint8_t *scales = codes + c * NUMBER * LANES, *leasts = scales + NUMBER * OUTPUTS;
            const vec scale = BITS == 4 ? widened(scales) : load<vec>(scales), least = BITS == 4 ? widened(leasts) : load<vec>(leasts);
            for (int r = 0; r < ROWS; r++)
                total[c][r] += __builtin_convertvector(sums[c][r], vec) * scale * from.scales[r * groups + group] +
                               least * from.shifts[r * groups + group];
        }
        codes += 2 * NUMBER * OUTPUTS;
    }
    for (int c = 0; c < WIDE; c++) {
        const int64_t first = output + c * LANES, count = std::min<int64_t>(LANES, w.outputs - first);
        if (count <= 0) return;
        vec bias = {};
        if (w.bias != nullptr) std::memcpy(&bias, w.bias + first, size_t(count) * 4);
        for (int r = 0; r < ROWS; r++) {
            const vec sum = total[c][r] + bias;
            std::memcpy(out + r * w.outputs + first, &sum, size_t(count) * 4);
        }
    }
}

// The outputs of a block for `count` rows.
template <int BITS, int ROWS = BITS == 4 ? TILE4 : TILE8>
TARGET static void panel(const Weights &w, Values from, int64_t count, int64_t output, float *out) {
    const int64_t groups = w.padded / w.group;
    for (; count >= ROWS; count -= ROWS) {
        tile<BITS, ROWS>(w, from, output, out);
        from = {from.values + ROWS * w.padded, from.scales + ROWS * groups, from.shifts + ROWS * groups};
        out += ROWS * w.outputs;
    }
    if constexpr (ROWS > 1) {
        if (count) panel<BITS, ROWS / 2>(w, from, count, output, out);
    }
}
