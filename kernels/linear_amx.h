// Products of many rows with a block of outputs by AMX, which multiplies tiles of 16 rows and 16 outputs, 64 inputs at once. Its
// sums are those of linear.h, exactly.

#define AMX __attribute__((target("arch=x86-64-v4,avx512vnni,amx-tile,amx-int8,prefer-vector-width=512")))

using v4::ints, v4::load, v4::vec, v4::widened;

// Rows, outputs and inputs of a tile.
constexpr int SIDE = 16, INPUTS = 64;

// Inputs of a block of outputs whose codes stay in a core's first cache while all rows are multiplied with them.
constexpr int64_t CHUNK = 512;

// Sums of two tiles of rows and two of outputs.
struct alignas(64) Sums {
    int32_t tiles[4][SIDE][SIDE];
    int32_t (&operator[](int64_t tile))[SIDE][SIDE] { return tiles[tile]; }
};

// Rows from which on a tile pays.
constexpr int64_t LEAST_ROWS = 8;

// Asks Linux for the tiles' registers, which a process does not have at first. Returns whether it has them.
static bool available() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & d >> 25 & 1)) return false;  // tiles, and products of 8 bits
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;                                          // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

static const bool is_available = available();

// Eight tiles of 16 rows of 64 bytes while it lives. Released, they cost a change of threads nothing, and others find none of theirs.
struct Tiles {
    AMX Tiles() {
        struct {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } shapes;
        std::fill_n(shapes.bytes, 8, uint16_t(64));
        std::fill_n(shapes.rows, 8, uint8_t(SIDE));
        _tile_loadconfig(&shapes);
    }
    AMX ~Tiles() { _tile_release(); }
};

// Writes rows of totals, one of 16 outputs each, as far as the weights have these outputs.
AMX static inline void write(const Weights &w, const vec *totals, int64_t rows, int64_t output, float *out) {
    const int64_t count = std::min<int64_t>(SIDE, w.outputs - output);
    if (count <= 0) return;
    vec bias = {};
    if (w.bias != nullptr) std::memcpy(&bias, w.bias + output, size_t(count) * 4);
    for (int64_t r = 0; r < rows; r++) {
        const vec sum = totals[r] + bias;
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
            vec totals[SIDE];
            for (int64_t r = 0; r < rows; r++)
                totals[r] = __builtin_convertvector(load<ints>(held[size_t(row / (2 * SIDE))][row / SIDE % 2 * 2 + c][r]), vec) * scale * from.scales[row + r] +
                            least * from.shifts[row + r];
            write(w, totals, rows, output + c * SIDE, out + row * w.outputs);
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

// 16 outputs from `output` on, the number `part` of a block, for 16 rows at most, of weights in 4 bits in groups of INPUTS. Tiles of
// one group are multiplied while the sums of the one before are scaled, which takes longer.
AMX static void rows4(const Weights &w, const uint8_t *bytes, const Values &from, int64_t rows, int64_t output, int part, float *out) {
    const int64_t groups = w.padded / INPUTS, stride = 4 * v4::OUTPUTS, size = (INPUTS / 2 + 4) * v4::OUTPUTS;
    const uint8_t *scales = w.packed + output * (w.padded / 2 + groups * 4) + INPUTS / 2 * v4::OUTPUTS + part * 2 * SIDE;
    bytes += part * 4 * SIDE;
    alignas(64) int32_t sums[2][SIDE][SIDE];
    vec totals[SIDE] = {};
    for (int64_t group = 0; group <= groups; group++) {
        if (group < groups) {
            _tile_zero(0);
            _tile_loadd(1, from.values + group * INPUTS, w.padded);
            _tile_loadd(2, bytes + group * INPUTS * v4::OUTPUTS, stride);
            _tile_dpbsud(0, 1, 2);
            _tile_stored(0, sums[group % 2], 4 * SIDE);
        }
        if (group > 0) {
            const int64_t last = group - 1;
            const vec scale = widened(scales + last * size), least = widened(scales + last * size + 2 * v4::OUTPUTS);
#pragma GCC unroll 16
            for (int r = 0; r < SIDE; r++)
                totals[r] += __builtin_convertvector(load<ints>(sums[last % 2][r]), vec) * scale * from.scales[r * groups + last] +
                             least * from.shifts[r * groups + last];
        }
    }
    write(w, totals, rows, output + part * SIDE, out);
}

// The outputs of a block for `count` rows.
template <int BITS> AMX static void panel(const Weights &w, Values from, int64_t count, int64_t output, float *out) {
    static thread_local std::vector<uint8_t> bytes;
    const int64_t groups = w.padded / w.group, tiled = count % SIDE < LEAST_ROWS ? count - count % SIDE : count;
    if (tiled == 0 || w.group != (BITS == 8 ? w.padded : INPUTS)) return v4::panel<BITS>(w, from, count, output, out);
    const Tiles tiles;
    if constexpr (BITS == 8) {
        panel8(w, from, tiled, output, out);
    } else {
        bytes.resize(size_t(w.padded * v4::OUTPUTS));
        expand(w, output, bytes.data());
        __asm__ volatile("" ::: "memory");  // GCC does not know that loads of tiles read memory
        for (int64_t row = 0; row < tiled; row += SIDE)
            for (int part = 0; part < 2; part++)
                rows4(w, bytes.data(), {from.values + row * w.padded, from.scales + row * groups, from.shifts + row * groups},
                      std::min<int64_t>(SIDE, tiled - row), output, part, out + row * w.outputs);
    }
    from = {from.values + tiled * w.padded, from.scales + tiled * groups, from.shifts + tiled * groups};
    if (tiled < count) v4::panel<BITS>(w, from, count - tiled, output, out + tiled * w.outputs);
}
