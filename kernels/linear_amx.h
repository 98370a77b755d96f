// Products of many rows with a block of outputs by AMX, which multiplies tiles of 16 rows and 16 outputs, 64 inputs at once. Of
// weights in 8 bits its sums are those of linear.h, exactly. Those in 4 bits, and rows, get one scale for all groups: to scale
// the sums of each takes longer than to multiply.

#define AMX __attribute__((target("arch=x86-64-v4,avx512vnni,amx-tile,amx-int8,prefer-vector-width=512")))

using v4::ints, v4::load, v4::vec, v4::widened;

// Inputs of a tile.
constexpr int INPUTS = 64;

// Inputs of a block of outputs whose codes stay in a core's first cache while all rows are multiplied with them.
constexpr int64_t CHUNK = 512;

// Sums of two tiles of rows and two of outputs.
struct alignas(64) Sums {
    int32_t tiles[4][SIDE][SIDE];
    int32_t (&operator[](int64_t tile))[SIDE][SIDE] { return tiles[tile]; }
};

// Rows from which on a tile pays.
constexpr int64_t LEAST_ROWS = 8;

static const bool is_available = tiles_available(25);  // products of 8 bits

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

// The outputs of a block from `output` on for `count` rows, of codes of 8 bits with one scale and one least weight for an output.
AMX static void multiply(const Weights &w, const uint8_t *codes, const uint8_t *scales, const Values &from, int64_t count,
                         int64_t output, float *out) {
    static thread_local std::vector<Sums> held;
    held.resize(std::max(held.size(), size_t(count / (2 * SIDE) + 1)));
    __asm__ volatile("" ::: "memory");  // GCC does not know that loads of tiles read memory
    for (int64_t k = 0; k < w.padded; k += CHUNK)
        for (int64_t row = 0; row < count; row += 2 * SIDE)
            add8(w, codes, from.values + row * w.padded, count - row, k, held[size_t(row / (2 * SIDE))]);
    for (int c = 0; c < 2; c++) {
        const int64_t first = output + c * SIDE, size = std::min<int64_t>(SIDE, w.outputs - first);
        if (size <= 0) return;
        const vec scale = load<vec>(scales + c * 4 * SIDE), least = load<vec>(scales + 4 * v4::OUTPUTS + c * 4 * SIDE);
        vec bias = {};
        if (w.bias != nullptr) std::memcpy(&bias, w.bias + first, size_t(size) * 4);
        for (int64_t row = 0; row < count; row++) {
            const ints sum = load<ints>(held[size_t(row / (2 * SIDE))][row / SIDE % 2 * 2 + c][row % SIDE]);
            const vec total = __builtin_convertvector(sum, vec) * scale * from.scales[row] + least * from.shifts[row] + bias;
            float *const to = out + row * w.outputs + first;
            if (size == SIDE) std::memcpy(to, &total, sizeof total);  // a size that is known is one store
            else std::memcpy(to, &total, size_t(size) * 4);
        }
    }
}

// The outputs of a block for `count` rows, of weights in 8 bits.
AMX static void panel8(const Weights &w, Values from, int64_t count, int64_t output, float *out) {
    const int64_t tiled = count % SIDE < LEAST_ROWS ? count - count % SIDE : count;
    if (tiled == 0 || w.group != w.padded) return v4::panel<8>(w, from, count, output, out);
    const Tiles tiles;
    const uint8_t *codes = w.packed + output * (w.padded + 8);
    multiply(w, codes, codes + w.padded * v4::OUTPUTS, from, tiled, output, out);
    from = {from.values + tiled * w.padded, from.scales + tiled, from.shifts + tiled};
    if (tiled < count) v4::panel<8>(w, from, count - tiled, output, out + tiled * w.outputs);
}

typedef uint16_t shorts __attribute__((vector_size(64)));

// Four codes of 4 bits in each int as codes of 8 bits: `factor` times them, plus `base`, of which the upper 8 of 16 bits count.
AMX static inline ints widened_codes(ints codes, shorts factor, shorts base) {
    const shorts pairs = (shorts)codes;
    return (ints)((((pairs & 0xff) * factor + base) >> 8) | (((pairs >> 8) * factor + base) & 0xff00));
}

// The same number in both halves of each int.
AMX static inline shorts twice(vec numbers) {
    const ints whole = __builtin_convertvector(numbers, ints);
    return (shorts)(whole | whole << 16);
}

// Codes of 4 bits of a block from `output` on as codes of 8 bits with one scale for an output, in the places that these have, and
// their scales and least weights behind. To round them again adds a hundredth to what they are off by.
AMX static void widen(const Weights &w, int64_t output, uint8_t *to) {
    const int64_t groups = w.padded / w.group, codes_size = w.group / 2 * v4::OUTPUTS, size = codes_size + 4 * v4::OUTPUTS;
    const uint8_t *const block = w.packed + output / v4::OUTPUTS * groups * size;
    for (int c = 0; c < 2; c++) {
        const uint8_t *scales = block + codes_size + c * 2 * SIDE, *leasts = scales + 2 * v4::OUTPUTS;
        vec most = vec{} + 1e-30f;
        for (int64_t group = 0; group < groups; group++) {
            const vec least = widened(leasts + group * size), greatest = least + 15 * widened(scales + group * size);
            most = -least > most ? -least : most;
            most = greatest > most ? greatest : most;
        }
        const vec scale = most / 127, least = -128 * scale, factor = 256 / scale;
        std::memcpy(to + w.padded * v4::OUTPUTS + c * 4 * SIDE, &scale, sizeof scale);
        std::memcpy(to + (w.padded + 4) * v4::OUTPUTS + c * 4 * SIDE, &least, sizeof least);
        uint8_t *next = to + c * 4 * SIDE;
        for (int64_t group = 0; group < groups; group++) {
            const shorts factors = twice(widened(scales + group * size) * factor + 0.5f);
            const shorts base = twice(widened(leasts + group * size) * factor + (128 * 256 + 128.5f));
            const uint8_t *codes = block + group * size + c * 4 * SIDE;
            for (int64_t k = 0; k < w.group; k += 8, codes += 4 * v4::OUTPUTS, next += 8 * v4::OUTPUTS) {
                const ints both = load<ints>(codes);
                const ints first = widened_codes(both & 0x0f0f0f0f, factors, base), second = widened_codes(both >> 4 & 0x0f0f0f0f, factors, base);
                std::memcpy(next, &first, sizeof first);
                std::memcpy(next + 4 * v4::OUTPUTS, &second, sizeof second);
            }
        }
    }
}

// The outputs of a block for `count` rows with one scale each, of weights in 4 bits.
AMX static void wide4(const Weights &w, Values from, int64_t count, int64_t output, float *out) {
    static thread_local std::vector<Line> held;
    held.resize(size_t((w.padded + 8) * v4::OUTPUTS) / sizeof(Line));
    uint8_t *const codes = held.data()->bytes;
    widen(w, output, codes);
    const Tiles tiles;
    multiply(w, codes, codes + w.padded * v4::OUTPUTS, from, count, output, out);
}
