// Attention of one head: 32 queries at a time, over CHUNK keys at a time. A tile has 16 rows of 32 bfloat16 or of 16 sums.

#define AMX __attribute__((target("arch=x86-64-v4,avx512bf16,amx-tile,amx-bf16,prefer-vector-width=512")))
#define AMX_INLINE __attribute__((target("arch=x86-64-v4,avx512bf16,amx-tile,amx-bf16,prefer-vector-width=512"), always_inline)) static inline

typedef float vec __attribute__((vector_size(64)));

// Numbers along which a tile sums; and rows of queries of two tiles.
constexpr int64_t DEPTH = 32, QUERIES = 2 * SIDE;

// Keys whose scores are computed before their weights: with these and the keys' part they stay in a core's second cache.
constexpr int64_t CHUNK = 512;

// Bytes of a tile's row, and numbers of a tile in bfloat16.
constexpr int64_t ROW = 64, TILE = SIDE * DEPTH;

static inline int64_t padded(int64_t count) { return (count + DEPTH - 1) / DEPTH * DEPTH; }

// GCC does not know that loads of tiles read memory.
static inline void written() { __asm__ volatile("" ::: "memory"); }

AMX_INLINE vec load(const float *from) { return (vec)_mm512_loadu_ps(from); }

// The first `count` numbers, at most 32, and zeros.
AMX_INLINE __m512i load_some(const uint16_t *from, int64_t count) {
    if (count >= DEPTH) return _mm512_loadu_si512(from);
    return _mm512_maskz_loadu_epi16(count <= 0 ? 0 : (__mmask32(1) << count) - 1, from);
}

// Rotates bits between 16 rows of 16 words so that rows become columns.
AMX_INLINE void transpose(__m512i *rows) {
    __m512i pairs[SIDE];
    for (int i = 0; i < SIDE; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4)
        for (int j = 0; j < 2; j++) {
            rows[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
            rows[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {
        const __m512i a = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88), b = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
        const __m512i c = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd), d = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
        pairs[i] = _mm512_shuffle_i32x4(a, b, 0x88);
        pairs[i + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
        pairs[i + 4] = _mm512_shuffle_i32x4(c, d, 0x88);
        pairs[i + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
    std::memcpy(rows, pairs, sizeof pairs);
}

// The keys and values of a head as tiles, padded with zeros to DEPTH. A tile of keys has two neighbouring numbers of 16 keys in a row,
// one of values two neighbouring keys of 16 numbers.
struct Head {
    std::vector<uint16_t> keys, values;  // [keys / 16, size / 32], [keys / 32, size / 16] tiles

    AMX void pack(const Attention &a, int64_t head) {
        const int64_t count = padded(a.key.count), size = padded(a.size);
        keys.resize(std::max(keys.size(), size_t(count * size)));
        values.resize(keys.size());
        const uint16_t *key = a.key.numbers + head / a.heads * a.key.image + head % a.heads * a.key.head;
        const uint16_t *value = a.value.numbers + head / a.heads * a.value.image + head % a.heads * a.value.head;
        uint16_t *key_tile = keys.data(), *value_tile = values.data();
        for (int64_t k = 0; k < count; k += SIDE)
            for (int64_t from = 0; from < size; from += DEPTH, key_tile += TILE) {
                __m512i rows[SIDE];
                for (int64_t r = 0; r < SIDE; r++)
                    rows[r] = k + r < a.key.count ? load_some(key + (k + r) * a.key.row + from, a.size - from) : _mm512_setzero_si512();
                transpose(rows);
                std::memcpy(key_tile, rows, sizeof rows);
            }
        alignas(64) uint16_t order[DEPTH];
        for (uint16_t i = 0; i < DEPTH; i++) order[i] = uint16_t(i / 2 + i % 2 * DEPTH);
        const __m512i low = _mm512_load_si512(order), high = _mm512_add_epi16(low, _mm512_set1_epi16(SIDE));
        for (int64_t k = 0; k < count; k += DEPTH)
            for (int64_t from = 0; from < size; from += DEPTH, value_tile += 2 * TILE)
                for (int64_t r = 0; r < DEPTH; r += 2) {
                    const uint16_t *row = value + (k + r) * a.value.row + from;
                    const __m512i none = _mm512_setzero_si512();
                    const __m512i one = k + r < a.key.count ? load_some(row, a.size - from) : none;
                    const __m512i two = k + r + 1 < a.key.count ? load_some(row + a.value.row, a.size - from) : none;
                    _mm512_storeu_si512(value_tile + r / 2 * DEPTH, _mm512_permutex2var_epi16(one, low, two));
                    _mm512_storeu_si512(value_tile + TILE + r / 2 * DEPTH, _mm512_permutex2var_epi16(one, high, two));
                }
    }
};

// Two tiles of 32 queries [16, 16] each.
struct Sums {
    float rows[2][SIDE][SIDE];
};

// What is known of 32 queries after some keys: their largest score, in powers of 2, the sum of their weights, and their values mixed.
struct State {
    float largest[QUERIES], sums[QUERIES];
    std::vector<Sums> mixed;  // [size / 16]
};

// 2^x for x <= 0, off by 7.5e-5 of it at most: a polynomial for the part behind the point.
AMX_INLINE vec power(vec x) {
    const vec part = (vec)_mm512_reduce_ps((__m512)x, 9);  // x - floor(x)
    const vec value = ((part * 0.078024669f + 0.226067301f) * part + 0.695833295f) * part + 0.999925265f;
    return (vec)_mm512_scalef_ps((__m512)value, (__m512)x);
}

// The scores of 32 queries for `count` keys, of which tiles begin at `keys`.
AMX static void multiply_keys(const uint16_t *queries, const uint16_t *keys, int64_t count, int64_t size, Sums *scores) {
    for (int64_t k = 0; k < count; k += 2 * SIDE, scores += 2, keys += 2 * SIDE * size) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t from = 0; from < size; from += DEPTH) {
            _tile_loadd(4, queries + from, size * 2);
            _tile_loadd(5, queries + SIDE * size + from, size * 2);
            _tile_loadd(6, keys + from * SIDE, ROW);
            _tile_loadd(7, keys + (size + from) * SIDE, ROW);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, scores[0].rows[0], ROW);
        _tile_stored(1, scores[0].rows[1], ROW);
        _tile_stored(2, scores[1].rows[0], ROW);
        _tile_stored(3, scores[1].rows[1], ROW);
    }
}

// Turns the scores of 16 queries for a chunk of keys, tiles of which there are `tiles`, into weights, tiles of 32 keys each.
AMX static void weigh(const Sums *scores, int64_t tiles, int half, float scale, int64_t size, bool is_first, State &state, uint16_t *weights) {
    vec top[SIDE];
    for (int r = 0; r < SIDE; r++) top[r] = load(scores->rows[half][r]);
    for (int64_t t = 1; t < tiles; t++)
#pragma GCC unroll 16
        for (int r = 0; r < SIDE; r++) top[r] = (vec)_mm512_max_ps((__m512)top[r], (__m512)load(scores[t].rows[half][r]));
    float *const largest = state.largest + half * SIDE, *const sums = state.sums + half * SIDE;
    alignas(64) float now[SIDE];
    for (int r = 0; r < SIDE; r++) now[r] = _mm512_reduce_max_ps((__m512)top[r]) * scale;
    if (!is_first) {
        const vec before = load(largest), after = (vec)_mm512_max_ps((__m512)before, (__m512)load(now)), factors = power(before - after);
        std::memcpy(now, &after, sizeof after);
        const vec sum = load(sums) * factors;
        std::memcpy(sums, &sum, sizeof sum);
        for (int64_t d = 0; d < size / SIDE; d++)
            for (int r = 0; r < SIDE; r++) {
                const vec mixed = load(state.mixed[size_t(d)].rows[half][r]) * factors[r];
                std::memcpy(state.mixed[size_t(d)].rows[half][r], &mixed, sizeof mixed);
            }
    }
    std::memcpy(largest, now, sizeof now);
    vec total[SIDE] = {};
    for (int64_t t = 0; t < tiles; t += 2, weights += 2 * TILE)
#pragma GCC unroll 16
        for (int r = 0; r < SIDE; r++) {
            const vec low = power(load(scores[t].rows[half][r]) * scale - now[r]), high = power(load(scores[t + 1].rows[half][r]) * scale - now[r]);
            total[r] += low + high;
            _mm512_storeu_si512(weights + r * DEPTH, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
        }
    for (int r = 0; r < SIDE; r++) sums[r] = (is_first ? 0 : sums[r]) + _mm512_reduce_add_ps((__m512)total[r]);
}

// Adds the values of a chunk of `count` keys, times their weights, to what was mixed of those before.
AMX static void mix(const uint16_t *weights, const uint16_t *values, int64_t count, int64_t size, bool is_first, Sums *mixed) {
    for (int64_t d = 0; d < size; d += DEPTH, mixed += 2, values += 2 * TILE) {
        if (is_first) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        } else {
            _tile_loadd(0, mixed[0].rows[0], ROW);
            _tile_loadd(1, mixed[0].rows[1], ROW);
            _tile_loadd(2, mixed[1].rows[0], ROW);
            _tile_loadd(3, mixed[1].rows[1], ROW);
        }
        for (int64_t k = 0; k < count; k += DEPTH) {
            _tile_loadd(4, weights + k * 2 * SIDE, ROW);
            _tile_loadd(5, weights + k * 2 * SIDE + TILE, ROW);
            _tile_loadd(6, values + k * size, ROW);
            _tile_loadd(7, values + k * size + TILE, ROW);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, mixed[0].rows[0], ROW);
        _tile_stored(1, mixed[0].rows[1], ROW);
        _tile_stored(2, mixed[1].rows[0], ROW);
        _tile_stored(3, mixed[1].rows[1], ROW);
    }
}

// Attention of the 32 queries from `first` on, or of those there are, of a head.
AMX static void attend(const Attention &a, const Head &packed, int64_t head, int64_t first) {
    static thread_local std::vector<uint16_t> queries, weights;
    static thread_local std::vector<Sums> scores;
    static thread_local State state;
    const int64_t size = padded(a.size), rows = std::min(QUERIES, a.query.count - first), image = head / a.heads, number = head % a.heads;
    queries.assign(size_t(QUERIES * size), 0);
    weights.resize(size_t(CHUNK * QUERIES));
    scores.resize(size_t(CHUNK / SIDE));
    state.mixed.resize(size_t(size / SIDE));
    const uint16_t *query = a.query.numbers + image * a.query.image + first * a.query.row + number * a.query.head;
    for (int64_t r = 0; r < rows; r++) std::copy_n(query + r * a.query.row, a.size, queries.data() + r * size);
    const float scale = a.scale * 1.44269504f;  // powers are of 2
    for (int64_t k = 0; k < a.key.count; k += CHUNK) {
        const int64_t keys = std::min(CHUNK, a.key.count - k), count = padded(keys), tiles = count / SIDE;
        written();
        multiply_keys(queries.data(), packed.keys.data() + k * size, count, size, scores.data());
        for (int64_t key = keys; key < count; key++)
            for (int r = 0; r < QUERIES; r++) scores[size_t(key / SIDE)].rows[r / SIDE][r % SIDE][key % SIDE] = -INFINITY;
        for (int half = 0; half < 2; half++) weigh(scores.data(), tiles, half, scale, size, k == 0, state, weights.data() + half * TILE);
        written();
        mix(weights.data(), packed.values.data() + k * size, count, size, k == 0, state.mixed.data());
    }
    uint16_t *out = a.out + ((image * a.query.count + first) * a.heads + number) * a.size;
    for (int64_t r = 0; r < rows; r++, out += a.heads * a.size) {
        const float factor = 1 / state.sums[r];
        for (int64_t d = 0; d < a.size; d += SIDE) {
            const vec mixed = load(state.mixed[size_t(d / SIDE)].rows[r / SIDE][r % SIDE]) * factor;
            const int64_t count = std::min<int64_t>(SIDE, a.size - d);
            _mm256_mask_storeu_epi16(out + d, __mmask16((1 << count) - 1), (__m256i)_mm512_cvtneps_pbh((__m512)mixed));
        }
    }
}
