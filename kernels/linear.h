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

// Outputs of a block.
constexpr int OUTPUTS = WIDE * LANES;

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
