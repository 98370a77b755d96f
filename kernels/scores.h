// Channels and scores of a picture, for one instruction set: included once for each, in a namespace of its own, with
// TARGET the attribute that names the set, and OUTPUTS how many sums a processor of that set keeps in registers.

typedef float vec __attribute__((vector_size(4 * LANES)));

INLINE vec load(const float *from) {
    vec value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

INLINE void store(float *to, vec value) { std::memcpy(to, &value, sizeof value); }

INLINE vec positive(vec value) { return value > 0 ? value : vec{}; }

INLINE float sigmoid(float value) { return 1 / (1 + std::exp(-value)); }

// ---- channels ----

// Luma of a tile's texels of level 1, as OpenCV rounds it.
INLINE void tile_luma(const Picture &p, int row, int col) {
    const int64_t across = int64_t(p.cols) * SIDE, stride = across + 2;
    for (int y = 0; y < SIDE; y++) {
        const uint8_t *rgb = p.level1 + ((row * SIDE + y) * across + col * SIDE) * 3;
        uint8_t *luma = p.luma + (row * SIDE + y + 1) * stride + col * SIDE + 1;
        for (int x = 0; x < SIDE; x++)
            luma[x] = uint8_t((rgb[3 * x] * 9798 + rgb[3 * x + 1] * 19235 + rgb[3 * x + 2] * 3735 + (1 << 14)) >> 15);
    }
}

INLINE float tile_entropy(const Picture &p, int row, int col) {
    const int64_t stride = int64_t(p.cols) * SIDE + 2;
    uint16_t halves[2][33] = {};
    for (int y = 0; y < SIDE; y++) {
        const uint8_t *luma = p.luma + (row * SIDE + y + 1) * stride + col * SIDE + 1;
        for (int x = 0; x < SIDE; x += 2) halves[0][luma[x] >> 3]++, halves[1][luma[x + 1] >> 3]++;
    }
    int64_t aligned = 0, shifted = 0;
    uint16_t count[33];
    for (int i = 0; i < 33; i++) count[i] = halves[0][i] + halves[1][i];
    for (int i = 0; i < 32; i += 2) aligned += p.count_log[count[i] + count[i + 1]];
    for (int i = 1; i < 31; i += 2) shifted += p.count_log[count[i] + count[i + 1]];
    shifted += p.count_log[count[0]] + p.count_log[count[31]];
    return float(double(p.count_log[SIDE * SIDE] - std::max(aligned, shifted)) / p.entropy_scale);
}

INLINE float tile_variance(const Picture &p, int row, int col) {
    const int64_t across = int64_t(p.cols) * (SIDE / 2);
    int32_t sums[3] = {}, squares[3] = {};
    for (int y = 0; y < SIDE / 2; y++) {
        const uint8_t *rgb = p.level2 + ((row * (SIDE / 2) + y) * across + col * (SIDE / 2)) * 3;
        for (int x = 0; x < SIDE / 2; x++)
            for (int c = 0; c < 3; c++) sums[c] += rgb[3 * x + c], squares[c] += rgb[3 * x + c] * rgb[3 * x + c];
    }
    float variance[3];
    for (int c = 0; c < 3; c++) {
        const float mean = float(sums[c]) / 64;
        variance[c] = float(squares[c]) / 64 - float(double(mean) * mean);  // rounded apart, not contracted
    }
    return std::max((variance[0] + variance[1] + variance[2]) * p.variance_scale, 0.0f);
}

INLINE void tile_edges(const Picture &p, int row, int col, float *gx_mean, float *gy_mean, float *magnitude_mean) {
    const int64_t stride = int64_t(p.cols) * SIDE + 2;
    int32_t gx_sum = 0, gy_sum = 0;
    float sum = 0;
    for (int y = 0; y < SIDE; y++) {
        const uint8_t *a = p.luma + (row * SIDE + y) * stride + col * SIDE, *b = a + stride, *c = b + stride;
        int32_t gx[SIDE], gy[SIDE];
        float length[SIDE];
        for (int x = 0; x < SIDE; x++) {
            gx[x] = a[x + 2] - a[x] + 2 * (b[x + 2] - b[x]) + c[x + 2] - c[x];
            gy[x] = c[x] - a[x] + 2 * (c[x + 1] - a[x + 1]) + c[x + 2] - a[x + 2];
        }
        for (int x = 0; x < SIDE; x++) length[x] = __builtin_rintf(__builtin_sqrtf(float(gx[x] * gx[x] + gy[x] * gy[x])));
        for (int x = 0; x < SIDE; x++) gx_sum += gx[x], gy_sum += gy[x];
        for (int x = 0; x < SIDE; x++) sum += length[x];  // of whole numbers: exact in any order
    }
    *gx_mean = float(gx_sum) / 256 / 1020.0f;
    *gy_mean = float(gy_sum) / 256 / 1020.0f;
    *magnitude_mean = sum / 256 / p.magnitude_scale;
}

// Replicates the border of luma by a texel.
INLINE void frame_luma(const Picture &p) {
    const int64_t high = int64_t(p.rows) * SIDE, wide = int64_t(p.cols) * SIDE, stride = wide + 2;
    std::memcpy(p.luma, p.luma + stride, size_t(stride));
    std::memcpy(p.luma + (high + 1) * stride, p.luma + high * stride, size_t(stride));
    for (int64_t y = 0; y < high + 2; y++) p.luma[y * stride] = p.luma[y * stride + 1], p.luma[y * stride + wide + 1] = p.luma[y * stride + wide];
}

INLINE int clamped(int value, int count) { return value < 0 ? 0 : value >= count ? count - 1 : value; }

// Sums of level 5 over (2·reach + 1)² tiles around each, its border replicated: [rows, cols, 3].
INLINE void box_sums(const Picture &p, int reach, int32_t *across, int32_t *sums) {
    const int rows = p.rows, cols = p.cols;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 3; c++) {
            const uint8_t *line = p.level5 + int64_t(r) * cols * 3 + c;
            int32_t sum = 0;
            for (int x = -reach; x <= reach; x++) sum += line[clamped(x, cols) * 3];
            for (int x = 0; x < cols; x++) {
                across[(int64_t(r) * cols + x) * 3 + c] = sum;
                sum += line[clamped(x + reach + 1, cols) * 3] - line[clamped(x - reach, cols) * 3];
            }
        }
    const int wide = cols * 3;
    for (int x = 0; x < wide; x++) sums[x] = 0;
    for (int y = -reach; y <= reach; y++)
        for (int x = 0; x < wide; x++) sums[x] += across[int64_t(clamped(y, rows)) * wide + x];
    for (int r = 1; r < rows; r++) {
        const int32_t *come = across + int64_t(clamped(r + reach, rows)) * wide;
        const int32_t *gone = across + int64_t(clamped(r - reach - 1, rows)) * wide;
        for (int x = 0; x < wide; x++) sums[int64_t(r) * wide + x] = sums[int64_t(r - 1) * wide + x] + come[x] - gone[x];
    }
}

INLINE void opponents(const float *rgb, float *out) {
    out[0] = (rgb[0] + rgb[1] + rgb[2]) / (3 * 255.0f);
    out[1] = (rgb[0] - rgb[1]) / 255.0f;
    out[2] = (rgb[2] - 0.5f * (rgb[0] + rgb[1])) / 255.0f;
}

INLINE void saliency(const Picture &p) {
    const int64_t tiles = int64_t(p.rows) * p.cols;
    int32_t *across = p.sums, *near = p.sums + tiles * 3, *far = near + tiles * 3;
    box_sums(p, 2, across, near);
    box_sums(p, 5, across, far);
    for (int r = 0; r < p.rows; r++)
        for (int x = 0; x < p.cols; x++) {
            const int64_t tile = int64_t(r) * p.cols + x;
            float high[3], low[3], around[2][3];
            for (int part = 0; part < 4; part++) {
                const uint8_t *texel = p.level4 + ((r * 2 + part / 2) * int64_t(p.cols) * 2 + x * 2 + part % 2) * 3;
                const float rgb[3] = {float(texel[0]), float(texel[1]), float(texel[2])};
                float centre[3];
                opponents(rgb, centre);
                for (int c = 0; c < 3; c++) {
                    high[c] = part ? std::max(high[c], centre[c]) : centre[c];
                    low[c] = part ? std::min(low[c], centre[c]) : centre[c];
                }
            }
            for (int side = 0; side < 2; side++) {
                const int32_t *sum = (side ? far : near) + tile * 3;
                const float share = side ? 1 / 121.0f : 1 / 25.0f;
                const float rgb[3] = {sum[0] * share, sum[1] * share, sum[2] * share};
                opponents(rgb, around[side]);
            }
            for (int c = 0; c < 3; c++) {
                float found = 0;
                for (int side = 0; side < 2; side++)
                    found += std::max(high[c] - around[side][c], around[side][c] - low[c]);
                p.channels[(8 + c) * tiles + tile] = std::min(std::max(found / 2, 0.0f), 1.0f);
            }
        }
}

TARGET static void channels(const Picture &p) {
    const int64_t tiles = int64_t(p.rows) * p.cols;
    for (int r = 0; r < p.rows; r++)
        for (int x = 0; x < p.cols; x++) {
            const int64_t tile = int64_t(r) * p.cols + x;
            if (!p.stale[tile]) continue;
            tile_luma(p, r, x);
            for (int c = 0; c < 3; c++) p.channels[c * tiles + tile] = p.level5[tile * 3 + c] / 255.0f;
            p.channels[11 * tiles + tile] = tile_variance(p, r, x);
            p.entropy[tile] = tile_entropy(p, r, x);
        }
    frame_luma(p);
    for (int r = 0; r < p.rows; r++)
        for (int x = 0; x < p.cols; x++) {
            bool near = false;
            for (int y = clamped(r - 1, p.rows); y <= clamped(r + 1, p.rows); y++)
                for (int z = clamped(x - 1, p.cols); z <= clamped(x + 1, p.cols); z++)
                    near |= p.stale[int64_t(y) * p.cols + z] != 0;
            float *at = p.channels + int64_t(r) * p.cols + x;
            if (near) tile_edges(p, r, x, at + 5 * tiles, at + 6 * tiles, at + 7 * tiles);
        }
    saliency(p);
}

// ---- scores ----

// Sums over a tile and its neighbours of `count` planes from `first`, for OUTPUTS outputs and LANES columns.
INLINE void first_layer(const Scorer &s, const float *plane, int64_t stride, const float *weight, int count, vec *sum) {
    for (int c = 0; c < count; c++, plane += (s.rows + 2) * stride)
        for (int k = 0; k < 9; k++, weight += HIDDEN_BOTH) {
            const vec seen = load(plane + (k / 3) * stride + k % 3);
            for (int o = 0; o < OUTPUTS; o++) sum[o] += seen * weight[o];
        }
}

// The outputs of a layer whose inputs are `in` columns' worth of vectors: weights [in, out].
template <int IN, int OUT> INLINE void layer(const vec *in, const float *weight, const float *bias, vec *out) {
    for (int first = 0; first < OUT; first += OUTPUTS) {
        vec sum[OUTPUTS];
        for (int o = 0; o < OUTPUTS; o++) sum[o] = vec{} + bias[first + o];
        for (int i = 0; i < IN; i++)
            for (int o = 0; o < OUTPUTS; o++) sum[o] += in[i] * weight[i * OUT + first + o];
        for (int o = 0; o < OUTPUTS; o++) out[first + o] = positive(sum[o]);
    }
}

INLINE vec weighted(const vec *in, const float *weight, float bias, int count) {
    vec sum = vec{} + bias;
    for (int i = 0; i < count; i++) sum += in[i] * weight[i];
    return sum;
}

// Row `r` of a map into a plane with a border, which is replicated beside it.
INLINE void keep_row(float *plane, int64_t stride, int r, const float *from, int cols) {
    float *to = plane + (r + 1) * stride;
    std::memcpy(to + 1, from, size_t(cols) * 4);
    to[0] = from[0];
    for (int64_t x = cols + 1; x < stride; x++) to[x] = from[cols - 1];
}

INLINE void keep_edges(float *plane, int64_t stride, int rows) {
    std::memcpy(plane, plane + stride, size_t(stride) * 4);
    std::memcpy(plane + (rows + 1) * stride, plane + rows * stride, size_t(stride) * 4);
}

// Takes the picture; marks tiles of which a channel but the clusters' is another.
INLINE void take(const Scorer &s, const float *channels, const float *entropy, int64_t stride) {
    const int64_t tiles = int64_t(s.rows) * s.cols, plane = (s.rows + 2) * stride;
    for (int c = 0; c < PLANES; c++) {
        const float *from = c < CLUSTERS ? channels + c * tiles : c < PLANES - 1 ? entropy : channels + CLUSTERS * tiles;
        float *to = s.seen + c * plane;
        for (int r = 0; r < s.rows; r++) {
            const float *now = from + int64_t(r) * s.cols, *before = to + (r + 1) * stride + 1;
            uint8_t *changed = s.changed + int64_t(r) * s.cols;
            if (c < PLANES - 1) {
                if (!std::memcmp(now, before, size_t(s.cols) * 4)) continue;
                for (int x = 0; x < s.cols; x++) changed[x] |= !(now[x] == before[x]);
            }
            keep_row(to, stride, r, now, s.cols);
        }
        keep_edges(to, stride, s.rows);
    }
}

INLINE bool is_near_change(const Scorer &s, int r, int first) {
    const int left = clamped(first - 1, s.cols), right = clamped(first + LANES, s.cols);
    bool near = false;
    for (int y = clamped(r - 1, s.rows); y <= clamped(r + 1, s.rows); y++)
        for (int x = left; x <= right; x++) near |= s.changed[int64_t(y) * s.cols + x] != 0;
    return near;
}

TARGET static void picture(const Scorer &s, const float *channels, const float *entropy, float *scores) {
    const int64_t tiles = int64_t(s.rows) * s.cols, chunks = (s.cols + LANES - 1) / LANES;
    const int64_t stride = s.stride, plane = (s.rows + 2) * stride;
    const int outputs = s.film ? HIDDEN_BOTH : HIDDEN;
    std::memset(s.changed, s.fresh, size_t(tiles));
    take(s, channels, entropy, stride);
    const float *w = s.weights;
    const float *gate = w, *bias = gate + 14, *local = bias + HIDDEN_BOTH, *clusters = local + 13 * 9 * HIDDEN_BOTH;
    const float *narrow = clusters + 9 * HIDDEN_BOTH, *narrow_bias = narrow + HIDDEN * NARROW;
    const float *out = narrow_bias + NARROW, *film = out + NARROW + 1, *film_bias = film + HIDDEN * HIDDEN;
    const float *half = film_bias + HIDDEN, *half_bias = half + HIDDEN * NARROW;
    const float *around = half_bias + NARROW, *around_bias = around + 9 * NARROW, *last = around_bias + NARROW;
    for (int r = 0; r < s.rows; r++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const int first = int(chunk) * LANES, count = std::min(LANES, s.cols - first);
            const float *corner = s.seen + r * stride + first;
            float *kept = s.kept + (r * chunks + chunk) * HIDDEN_BOTH * LANES;
            const bool anew = is_near_change(s, r, first);
            vec hidden[HIDDEN_BOTH];
            for (int o = 0; o < outputs; o += OUTPUTS) {
                vec sum[OUTPUTS];
                if (anew) {
                    for (int i = 0; i < OUTPUTS; i++) sum[i] = vec{} + bias[o + i];
                    first_layer(s, corner, stride, local + o, PLANES - 1, sum);
                    for (int i = 0; i < OUTPUTS; i++) store(kept + (o + i) * LANES, sum[i]);
                } else {
                    for (int i = 0; i < OUTPUTS; i++) sum[i] = load(kept + (o + i) * LANES);
                }
                first_layer(s, corner + (PLANES - 1) * plane, stride, clusters + o, 1, sum);
                for (int i = 0; i < OUTPUTS; i++) hidden[o + i] = positive(sum[i]);
            }
            vec few[NARROW], gated = vec{} + gate[13];
            for (int c = 0; c < PLANES; c++)
                if (c != PLANES - 2) gated += load(corner + c * plane + stride + 1) * gate[c < CLUSTERS ? c : CLUSTERS];
            layer<HIDDEN, NARROW>(hidden, narrow, narrow_bias, few);
            const vec stands_out = weighted(few, out, out[NARROW], NARROW);
            float *at = scores + int64_t(r) * s.cols + first;
            for (int i = 0; i < count; i++) {
                at[i] = entropy[int64_t(r) * s.cols + first + i] * sigmoid(gated[i]);
                at[tiles + i] = sigmoid(stands_out[i]);
            }
            if (!s.film) continue;
            vec asked[HIDDEN];
            layer<HIDDEN, HIDDEN>(hidden + HIDDEN, film, film_bias, asked);
            layer<HIDDEN, NARROW>(asked, half, half_bias, few);
            for (int o = 0; o < NARROW; o++) store(s.asked + o * plane + (r + 1) * stride + first + 1, few[o]);
        }
    if (!s.film) return;
    for (int o = 0; o < NARROW; o++) {
        float *map = s.asked + o * plane;
        for (int r = 1; r <= s.rows; r++) map[r * stride] = map[r * stride + 1], map[r * stride + s.cols + 1] = map[r * stride + s.cols];
        keep_edges(map, stride, s.rows);
    }
    for (int r = 0; r < s.rows; r++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const int first = int(chunk) * LANES, count = std::min(LANES, s.cols - first);
            vec few[NARROW];
            for (int o = 0; o < NARROW; o++) {
                const float *corner = s.asked + o * plane + r * stride + first;
                vec sum = load(corner + stride + 1) + around_bias[o];
                for (int k = 0; k < 9; k++) sum += load(corner + (k / 3) * stride + k % 3) * around[o * 9 + k];
                few[o] = positive(sum);
            }
            const vec found = weighted(few, last, last[NARROW], NARROW);
            float *at = scores + 2 * tiles + int64_t(r) * s.cols + first;
            for (int i = 0; i < count; i++) at[i] = sigmoid(found[i]);
        }
}

// ---- balance ----

// Contradiction of attention and saliency; see arr_coc/relevance/contradiction.py.
INLINE float contradiction(const Balance &b, const float *scores, const float *prior, float most_trust) {
    const int64_t tiles = int64_t(b.rows) * b.cols;
    const float *standing = scores + tiles, *attention = prior, *trust = prior + 2 * tiles;
    double seen = 0, all = 0, usual = 0;
    for (int r = 0; r < b.rows; r++)
        for (int x = 0; x < b.cols; x++) {
            float near = 0;
            for (int y = clamped(r - 1, b.rows); y <= clamped(r + 1, b.rows); y++)
                for (int z = clamped(x - 1, b.cols); z <= clamped(x + 1, b.cols); z++)
                    near = std::max(near, standing[int64_t(y) * b.cols + z]);
            const int64_t tile = int64_t(r) * b.cols + x;
            const float square = attention[tile] * attention[tile], looked = square * square * trust[tile];
            seen += double(looked) * near, all += looked, usual += near;
        }
    usual /= double(tiles);
    if (!(all > b.tiny && usual > b.tiny)) return 0;
    const double share = seen / std::max(all, double(b.tiny)) / std::max(usual, double(b.tiny));
    const double away = (b.looked_at - share) / (b.looked_at - b.looked_away);
    return float(std::min(std::max(away, 0.0), 1.0)) * std::min(most_trust / b.sure, 1.0f);
}

TARGET static int32_t balance(const Balance &b, const float *prior, float *scores, float *weights, float *relevance) {
    const int64_t tiles = int64_t(b.rows) * b.cols;
    float *participation = scores + 2 * tiles;
    float usual = 0, most_trust = 0;
    if (prior) {
        const float *trust = prior + 2 * tiles;
        double known = 0, all = 0;
        for (int64_t i = 0; i < tiles; i++) {
            relevance[i] = b.recall[0] * prior[i] + b.recall[1] * prior[tiles + i];  // what was fed back, for now
            known += trust[i], all += double(relevance[i]) * trust[i];
            most_trust = std::max(most_trust, trust[i]);
        }
        usual = float(all / std::max(known, 1e-6));
    }
    if (!b.learned)
        for (int64_t i = 0; i < tiles; i++)
            participation[i] = prior ? usual + prior[2 * tiles + i] * (relevance[i] - usual) : 0;
    float statistics[6];
    for (int m = 0; m < 3; m++) {
        double sum = 0;
        float most = scores[m * tiles];
        for (int64_t i = 0; i < tiles; i++) sum += scores[m * tiles + i], most = std::max(most, scores[m * tiles + i]);
        statistics[m] = float(sum / double(tiles)), statistics[3 + m] = most;
    }
    for (int m = 0; m < 3; m++) weights[m] = b.out_bias[m];
    for (int h = 0; h < b.width; h++) {
        float sum = b.bias[h];
        for (int i = 0; i < 6; i++) sum += b.statistics[h * 6 + i] * statistics[i];
        for (int m = 0; m < 3 && sum > 0; m++) weights[m] += b.out[m * b.width + h] * sum;
    }
    for (int m = 0; m < 3; m++) weights[m] = sigmoid(weights[m]);
    const float strength = std::min(statistics[4] / b.weak, 1.0f);
    if (!b.asked) weights[0] += (1 - weights[0]) * (1 - strength);
    weights[1] *= strength;
    weights[2] *= b.learned ? 1 : most_trust;
    const float doubt = prior && !b.hears ? contradiction(b, scores, prior, most_trust) : 0;
    weights[1] *= 1 - doubt;
    const float sum = std::max(weights[0] + weights[1] + weights[2], 1e-6f);
    const float share[3] = {weights[0] / sum, weights[1] / sum, weights[2] / sum};
    int32_t finite = 1;
    for (int64_t i = 0; i < tiles; i++) {
        const float fed = relevance[i];
        float now = share[0] * scores[i] + share[1] * scores[tiles + i] + share[2] * participation[i];
        if (prior) {
            float trust = prior[2 * tiles + i];
            trust += doubt * (std::min(b.alone * trust, 1.0f) - trust);
            const float evidence = 2 * trust * std::log((fed + b.faint) / (usual + b.faint));
            const float held = now < b.doubt ? b.doubt : now > 1 - b.doubt ? 1 - b.doubt : now;
            now = sigmoid(std::log(held / (1 - held)) + evidence);
        }
        finite &= std::isfinite(now);
        relevance[i] = now;
    }
    return finite;
}
