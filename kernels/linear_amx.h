// Products of many rows with a block of outputs by AMX, which multiplies tiles of 16 rows and 16 outputs, 64 inputs at once. Its
// sums are those of linear.h, exactly.

#define AMX __attribute__((target("arch=x86-64-v4,avx512vnni,amx-tile,amx-int8,prefer-vector-width=512")))

using v4::ints, v4::load, v4::vec, v4::widened;

// Inputs of a tile.
constexpr int INPUTS = 64;

// Inputs of a block of outputs whose codes stay in a core's first cache while all rows are multiplied with them.
constexpr int64_t CHUNK = 512;

// Sums of two tiles of rows and two of outputs.
struct Sums {
    int32_t tiles[4][SIDE][SIDE];
    int32_t (&operator[](int64_t tile))[SIDE][SIDE] { return tiles[tile]; }
};

// Rows from which on a tile pays.
constexpr int64_t LEAST_ROWS = 8;

static const bool is_available = tiles_available(25);  // products of 8 bits

// Writes rows of totals, one of 16 outputs each, as far as the weights have these outputs.
AMX static inline void write(const Weights &w, const float *totals, int64_t rows, int64_t output, float *out) {
    const int64_t count = std::min<int64_t>(SIDE, w.outputs - output);
    if (count <= 0) return;
    vec bias = {};
    if (w.bias != nullptr) std::memcpy(&bias, w.bias + output, size_t(count) * 4);
    for (int64_t r = 0; r < rows; r++) {
        const vec sum = load<vec>(totals + r * SIDE) + bias;
        float *const to = out + r * w.outputs + output;
        if (count == SIDE) std::memcpy(to, &sum, sizeof sum);  // a size that is known is one store
        else std::memcpy(to, &sum, size_t(count) * 4);
    }
}

// Adds the products of inputs from `first` on to the sums of 32 rows at most and a block of outputs, of weights in 8 bits with one
// scale for an output.
AMX static void add8(const Weights &w, const uint8_t *codes, const int8_t *values, int64_t rows, int64_t first, Sums &sums) {
    const int64_t stride = 4 * v4::OUTPUTS, last = std::min(first + CHUNK, w.padded);
    if (first == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums[0], 4 * SIDE);
        _tile_loadd(1, sums[1], 4 * SIDE);
        _tile_loadd(2, sums[2], 4 * SIDE);
        _tile_loadd(3, sums[3], 4 * SIDE);
    }
    for (int64_t k = first; k < last; k += INPUTS) {
        _tile_loadd(4, values + k, w.padded);
        _tile_loadd(6, codes + k * v4::OUTPUTS, stride);
        _tile_loadd(7, codes + k * v4::OUTPUTS + 4 * SIDE, stride);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        if (rows <= SIDE) continue;
        _tile_loadd(5, values + k + SIDE * w.padded, w.padded);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(0, sums[0], 4 * SIDE);
    _tile_stored(1, sums[1], 4 * SIDE);
    _tile_stored(2, sums[2], 4 * SIDE);
    _tile_stored(3, sums[3], 4 * SIDE);
}

// The outputs of a block from `output` on for `count` rows, of weights in 8 bits.
AMX static void panel8(const Weights &w, const Values &from, int64_t count, int64_t output, float *out) {
    static thread_local std::vector<Sums> held;
    const uint8_t *codes = w.packed + output * (w.padded + 8), *scales = codes + w.padded * v4::OUTPUTS;
    held.resize(std::max(held.size(), size_t(count / (2 * SIDE) + 1)));
    for (int64_t k = 0; k < w.padded; k += CHUNK)
        for (int64_t row = 0; row < count; row += 2 * SIDE)
            add8(w, codes, from.values + row * w.padded, count - row, k, held[size_t(row / (2 * SIDE))]);
    for (int64_t row = 0; row < count; row += SIDE) {
        const int64_t rows = std::min<int64_t>(SIDE, count - row);
        for (int c = 0; c < 2; c++) {
            const vec scale = load<vec>(scales + c * 4 * SIDE), least = load<vec>(scales + 4 * v4::OUTPUTS + c * 4 * SIDE);
            float totals[SIDE][SIDE];
            for (int64_t r = 0; r < rows; r++) {
                const ints sum = load<ints>(held[size_t(row / (2 * SIDE))][row / SIDE % 2 * 2 + c][r]);
                const vec total = __builtin_convertvector(sum, vec) * scale * from.scales[row + r] + least * from.shifts[row + r];
                std::memcpy(totals[r], &total, sizeof total);
            }
            write(w, totals[0], rows, output + c * SIDE, out + row * w.outputs);
        }
    }
}

// Codes of 4 bits of a block from `output` on as bytes, each in the place that codes of 8 bits have.
AMX static void expand(const Weights &w, int64_t output, uint8_t *to) {
    const int64_t groups = w.padded / w.group;
    const uint8_t *codes = w.packed + output * (w.padded / 2 + groups * 4);
    for (int64_t group = 0; group < groups; group++, codes += 4 * v4::OUTPUTS)
        for (int64_t k = 0; k < w.group; k += 8, codes += 4 * v4::OUTPUTS, to += 8 * v4::OUTPUTS)
            for (int c = 0; c < 2; c++) {
                const ints both = load<ints>(codes + c * 4 * SIDE), low = both & 0x0f0f0f0f, high = both >> 4 & 0x0f0f0f0f;
                std::memcpy(to + c * 4 * SIDE, &low, sizeof low);
                std::memcpy(to + 4 * v4::OUTPUTS + c * 4 * SIDE, &high, sizeof high);
            }
}

// Multiplies 16 rows with 16 outputs, of a group of inputs, by a tile that the compiler has to know by its number.
#define MULTIPLY_GROUP(TILE, VALUES, PADDED, BYTES, GROUP, SUMS)                    \
    _tile_zero(TILE);                                                               \
    _tile_loadd(4, VALUES + (GROUP) * INPUTS, PADDED);                              \
    _tile_loadd(5, BYTES + (GROUP) * INPUTS * v4::OUTPUTS, 4 * v4::OUTPUTS);        \
    _tile_dpbsud(TILE, 4, 5);                                                       \
    _tile_stored(TILE, SUMS[TILE], 4 * SIDE)

// Adds the products of groups of inputs from `first` on, CHUNK inputs at most, to the totals of 16 rows and the 16 outputs of a block
// whose bytes and scales begin there. Four groups are multiplied before the sums of the four before them are scaled, so that
// nothing waits for a tile.
AMX static void add4(const Weights &w, const uint8_t *bytes, const uint8_t *scales, const Values &from, int64_t first, float *totals) {
    const int64_t groups = w.padded / INPUTS, last = std::min(first + CHUNK / INPUTS, groups), size = (INPUTS / 2 + 4) * v4::OUTPUTS;
    Sums sums[2];
    vec here[SIDE];
    std::memcpy(here, totals, sizeof here);
    for (int64_t group = first; group < last + 4; group += 4) {
        Sums &next = sums[group / 4 % 2], &before = sums[1 - group / 4 % 2];
        if (group < last) {
            MULTIPLY_GROUP(0, from.values, w.padded, bytes, group, next);
        }
        if (group + 1 < last) {
            MULTIPLY_GROUP(1, from.values, w.padded, bytes, group + 1, next);
        }
        if (group + 2 < last) {
            MULTIPLY_GROUP(2, from.values, w.padded, bytes, group + 2, next);
        }
        if (group + 3 < last) {
            MULTIPLY_GROUP(3, from.values, w.padded, bytes, group + 3, next);
        }
        for (int64_t done = std::max(group - 4, first); done < std::min(group, last); done++) {
            const vec scale = widened(scales + done * size), least = widened(scales + done * size + 2 * v4::OUTPUTS);
#pragma GCC unroll 16
            for (int r = 0; r < SIDE; r++)
                here[r] += __builtin_convertvector(load<ints>(before[done % 4][r]), vec) * scale * from.scales[r * groups + done] +
                                least * from.shifts[r * groups + done];
        }
    }
    std::memcpy(totals, here, sizeof here);
}

// The outputs of a block from `output` on for `count` rows, of weights in 4 bits in groups of INPUTS.
AMX static void panel4(const Weights &w, const Values &from, int64_t count, int64_t output, float *out) {
    static thread_local std::vector<uint8_t> bytes;
    static thread_local std::vector<float> totals;
    const int64_t groups = w.padded / INPUTS;
    const uint8_t *scales = w.packed + output * (w.padded / 2 + groups * 4) + INPUTS / 2 * v4::OUTPUTS;
    bytes.resize(size_t(w.padded * v4::OUTPUTS));
    totals.assign(size_t((count + SIDE - 1) * v4::OUTPUTS), 0);
    expand(w, output, bytes.data());
    __asm__ volatile("" ::: "memory");  // GCC does not know that loads of tiles read memory
    for (int64_t first = 0; first < groups; first += CHUNK / INPUTS)
        for (int64_t row = 0; row < count; row += SIDE)
            for (int c = 0; c < 2; c++)
                add4(w, bytes.data() + c * 4 * SIDE, scales + c * 2 * SIDE,
                     {from.values + row * w.padded, from.scales + row * groups, from.shifts + row * groups}, first,
                     totals.data() + row * v4::OUTPUTS + c * SIDE * SIDE);
    for (int64_t row = 0; row < count; row += SIDE)
        for (int c = 0; c < 2; c++)
            write(w, totals.data() + row * v4::OUTPUTS + c * SIDE * SIDE, std::min<int64_t>(SIDE, count - row), output + c * SIDE, out + row * w.outputs);
}

// The outputs of a block for `count` rows.
template <int BITS> AMX static void panel(const Weights &w, Values from, int64_t count, int64_t output, float *out) {
    const int64_t groups = w.padded / w.group, tiled = count % SIDE < LEAST_ROWS ? count - count % SIDE : count;
    if (tiled == 0 || w.group != (BITS == 8 ? w.padded : INPUTS)) return v4::panel<BITS>(w, from, count, output, out);
    const Tiles tiles;
    if (BITS == 8) panel8(w, from, tiled, output, out);
    else panel4(w, from, tiled, output, out);
    from = {from.values + tiled * w.padded, from.scales + tiled * groups, from.shifts + tiled * groups};
    if (tiled < count) v4::panel<BITS>(w, from, count - tiled, output, out + tiled * w.outputs);
}
