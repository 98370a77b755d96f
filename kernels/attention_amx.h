// Attention of one head: 32 queries at a time, over CHUNK keys at a time. A tile has 16 rows of 32 bfloat16 or of 16 sums.

#define AMX __attribute__((target("arch=x86-64-v4,avx512bf16,amx-tile,amx-bf16,prefer-vector-width=512")))
#define AMX_INLINE AMX __attribute__((always_inline)) inline

typedef float vec __attribute__((vector_size(64)));

// Numbers along which a tile sums; and rows of queries of two tiles.
constexpr int64_t DEPTH = 32, QUERIES = 2 * SIDE;

// Keys whose scores are computed before their weights: with these and the keys' part they stay in a core's second cache.
constexpr int64_t CHUNK = 256;

// Bytes of a tile's row.
constexpr int64_t ROW = 64;

// Aligned, so that a row is one line of the cache: products take twice as long otherwise.
struct alignas(ROW) Tile {
    uint16_t rows[SIDE][DEPTH];
};

static inline int64_t padded(int64_t count) { return (count + DEPTH - 1) / DEPTH * DEPTH; }

// GCC does not know that loads of tiles read memory.
static inline void written() { __asm__ volatile("" ::: "memory"); }

AMX_INLINE static vec load(const float *from) { return (vec)_mm512_loadu_ps(from); }

// Turns 16 rows of 16 words into columns.
AMX_INLINE static void transpose(__m512i *rows) {
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

// Rows bfloat16 of one image and head; those of a part whose distances are `row` numbers.
struct HeadRows {
    const uint16_t *numbers;
    int64_t count, row, size;

    HeadRows(const Attention &a, const Part &part, int64_t head)
        : numbers(part.numbers + head / a.heads * part.image + head % a.heads * part.head), count(part.count), row(part.row), size(a.size) {}

    // The DEPTH numbers from `from` on of a row, as far as there are any, and zeros.
    AMX_INLINE __m512i load(int64_t number, int64_t from) const {
        if (number >= count) return _mm512_setzero_si512();
        const uint16_t *first = numbers + number * row + from;
        const int64_t left = size - from;
        return left >= DEPTH ? _mm512_loadu_si512(first) : _mm512_maskz_loadu_epi16((__mmask32(1) << left) - 1, first);
    }
};

// The keys and values of a head as tiles, padded with zeros to DEPTH. A tile of keys has two neighbouring numbers of 16 keys in a row,
// one of values two neighbouring keys of 16 numbers.
struct Head {
    std::vector<Tile> keys, values;  // [keys / 16, size / 32], [keys / 32, size / 16]

    AMX void pack(const Attention &a, int64_t head) {
        const int64_t count = padded(a.key.count), size = padded(a.size);
        const HeadRows key(a, a.key, head), value(a, a.value, head);
        keys.resize(std::max(keys.size(), size_t(count / SIDE * size / DEPTH)));
        values.resize(keys.size());
        Tile *tile = keys.data();
        for (int64_t k = 0; k < count; k += SIDE)
            for (int64_t from = 0; from < size; from += DEPTH, tile++) {
                __m512i rows[SIDE];
                for (int64_t r = 0; r < SIDE; r++) rows[r] = key.load(k + r, from);
                transpose(rows);
                std::memcpy(tile->rows, rows, sizeof rows);
            }
        alignas(64) uint16_t order[DEPTH];
        for (uint16_t i = 0; i < DEPTH; i++) order[i] = uint16_t(i / 2 + i % 2 * DEPTH);
        const __m512i low = _mm512_load_si512(order), high = _mm512_add_epi16(low, _mm512_set1_epi16(SIDE));
        tile = values.data();
        for (int64_t k = 0; k < count; k += DEPTH)
            for (int64_t from = 0; from < size; from += DEPTH, tile += 2)
                for (int64_t r = 0; r < SIDE; r++) {
                    const __m512i one = value.load(k + 2 * r, from), two = value.load(k + 2 * r + 1, from);
                    _mm512_store_si512(tile[0].rows[r], _mm512_permutex2var_epi16(one, low, two));
                    _mm512_store_si512(tile[1].rows[r], _mm512_permutex2var_epi16(one, high, two));
                }
    }
};

// Two tiles of 32 queries [16, 16] each.
struct alignas(ROW) Sums {
    float rows[2][SIDE][SIDE];
};

// What is known of 32 queries after some keys: their largest score, in powers of 2, the sum of their weights, and their values mixed.
struct State {
    float largest[QUERIES], sums[QUERIES];
    std::vector<Sums> mixed;  // [size / 16]
};

// 2^x for x <= 0, off by 7.5e-5 of it at most: a polynomial for the part behind the point.
AMX_INLINE static vec power(vec x) {
    const vec part = (vec)_mm512_reduce_ps((__m512)x, 9);  // x - floor(x)
    const vec value = ((part * 0.078024669f + 0.226067301f) * part + 0.695833295f) * part + 0.999925265f;
    return (vec)_mm512_scalef_ps((__m512)value, (__m512)x);
}

// Registers 0 to 3 hold sums of 32 rows for twice 16 columns.
AMX_INLINE static void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// Adds the products of 32 rows, two tiles, and of two tiles of columns.
AMX_INLINE static void add_products(const Tile *rows, const Tile *columns, const Tile *others) {
    _tile_loadd(4, rows, ROW);
    _tile_loadd(5, rows + 1, ROW);
    _tile_loadd(6, columns, ROW);
    _tile_loadd(7, others, ROW);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
}

AMX_INLINE static void store_sums(Sums *to) {
    _tile_stored(0, to[0].rows[0], ROW);
    _tile_stored(1, to[0].rows[1], ROW);
    _tile_stored(2, to[1].rows[0], ROW);
    _tile_stored(3, to[1].rows[1], ROW);
}

// The scores of 32 queries, tiles [size / 32, 2], for `tiles` times 16 keys.
AMX static void multiply_keys(const Tile *queries, const Tile *keys, int64_t tiles, int64_t depths, Sums *scores) {
    for (int64_t t = 0; t < tiles; t += 2, scores += 2, keys += 2 * depths) {
        clear_sums();
        for (int64_t d = 0; d < depths; d++) {
            add_products(queries + 2 * d, keys + d, keys + depths + d);
        }
        store_sums(scores);
    }
}

// Turns the scores of 16 queries for a chunk of keys, tiles of which there are `tiles`, into weights, tiles of 32 keys each.
AMX static void weigh(const Sums *scores, int64_t tiles, int half, float scale, bool is_first, State &state, Tile *weights) {
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
        for (Sums &part : state.mixed)
            for (int r = 0; r < SIDE; r++) {
                const vec mixed = load(part.rows[half][r]) * factors[r];
                std::memcpy(part.rows[half][r], &mixed, sizeof mixed);
            }
    }
    std::memcpy(largest, now, sizeof now);
    vec total[SIDE] = {};
    for (int64_t t = 0; t < tiles; t += 2, weights += 2)
#pragma GCC unroll 16
        for (int r = 0; r < SIDE; r++) {
            const vec low = power(load(scores[t].rows[half][r]) * scale - now[r]), high = power(load(scores[t + 1].rows[half][r]) * scale - now[r]);
            total[r] += low + high;
            _mm512_store_si512(weights->rows[r], (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
        }
    for (int r = 0; r < SIDE; r++) sums[r] = (is_first ? 0 : sums[r]) + _mm512_reduce_add_ps((__m512)total[r]);
}

// Adds the values of `tiles` times 32 keys, times their weights, to what was mixed of those before.
AMX static void mix(const Tile *weights, const Tile *values, int64_t tiles, int64_t depths, bool is_first, Sums *mixed) {
    for (int64_t d = 0; d < depths; d++, mixed += 2, values += 2) {
        if (is_first) {
            clear_sums();
        } else {
            _tile_loadd(0, mixed[0].rows[0], ROW);
            _tile_loadd(1, mixed[0].rows[1], ROW);
            _tile_loadd(2, mixed[1].rows[0], ROW);
            _tile_loadd(3, mixed[1].rows[1], ROW);
        }
        for (int64_t t = 0; t < tiles; t++) {
            add_products(weights + 2 * t, values + 2 * depths * t, values + 2 * depths * t + 1);
        }
        store_sums(mixed);
    }
}

// Attention of the 32 queries from `first` on, or of those there are, of a head.
AMX static void attend(const Attention &a, const Head &packed, int64_t head, int64_t first) {
    static thread_local std::vector<Tile> queries, weights;
    static thread_local std::vector<Sums> scores;
    static thread_local State state;
    const int64_t depths = padded(a.size) / DEPTH;
    queries.resize(size_t(2 * depths));
    weights.resize(size_t(2 * CHUNK / DEPTH));
    scores.resize(size_t(CHUNK / SIDE));
    state.mixed.resize(size_t(2 * depths));
    const HeadRows query(a, a.query, head);
    for (int64_t r = 0; r < QUERIES; r++)
        for (int64_t d = 0; d < depths; d++)
            _mm512_store_si512(queries[size_t(2 * d + r / SIDE)].rows[r % SIDE], query.load(first + r, d * DEPTH));
    const float scale = a.scale * 1.44269504f;  // powers are of 2
    for (int64_t k = 0; k < a.key.count; k += CHUNK) {
        const int64_t keys = std::min(CHUNK, a.key.count - k), count = padded(keys), tiles = count / SIDE;
        written();
        multiply_keys(queries.data(), packed.keys.data() + k / SIDE * depths, tiles, depths, scores.data());
        for (int64_t key = keys; key < count; key++)
            for (int r = 0; r < QUERIES; r++) scores[size_t(key / SIDE)].rows[r / SIDE][r % SIDE][key % SIDE] = -INFINITY;
        for (int half = 0; half < 2; half++) weigh(scores.data(), tiles, half, scale, k == 0, state, weights.data() + half);
        written();
        mix(weights.data(), packed.values.data() + k / SIDE * depths, tiles / 2, depths, k == 0, state.mixed.data());
    }
    const int64_t rows = std::min(QUERIES, a.query.count - first);
    uint16_t *out = a.out + ((head / a.heads * a.query.count + first) * a.heads + head % a.heads) * a.size;
    for (int64_t r = 0; r < rows; r++, out += a.heads * a.size) {
        const float factor = 1 / state.sums[r];
        for (int64_t d = 0; d < a.size; d += SIDE) {
            const vec mixed = load(state.mixed[size_t(d / SIDE)].rows[r / SIDE][r % SIDE]) * factor;
            const int64_t count = std::min<int64_t>(SIDE, a.size - d);
            _mm256_mask_storeu_epi16(out + d, __mmask16((1 << count) - 1), (__m256i)_mm512_cvtneps_pbh((__m512)mixed));
        }
    }
}
