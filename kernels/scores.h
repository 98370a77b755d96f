// Channels and scores of a picture, for one instruction set: included once for each, in a namespace of its own, with
// TARGET the attribute that names the set, LANES the float32 of its registers, and OUTPUTS how many sums are kept in those.

typedef float vec __attribute__((vector_size(4 * LANES)));

INLINE vec load(const float *from) {
    vec value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

INLINE void store(float *to, vec value) { std::memcpy(to, &value, sizeof value); }

INLINE vec positive(vec value) { return value > 0 ? value : vec{}; }

INLINE float sigmoid(float value) { return 1 / (1 + std::exp(-value)); }

typedef int32_t ints __attribute__((vector_size(4 * LANES)));

// Sigmoids within 2e-7: of exp(-value) the power of two is put into the exponent, the rest is a polynomial (Cephes, expf).
INLINE vec sigmoids(vec value) {
    vec x = -value;
    x = x > 87 ? vec{} + 87 : x < -87 ? vec{} - 87 : x;
    const vec whole = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;  // rounded: so large a sum has no fraction
    const vec rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vec sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1;
    const ints power = (__builtin_convertvector(whole, ints) + 127) << 23;
    vec scale;
    std::memcpy(&scale, &power, sizeof scale);
    return 1 / (1 + sum * scale);
}

// ---- channels ----

// Luma of the texels of level 1 of the tiles of a row from `first` to before `end`, as OpenCV rounds it.
INLINE void luma_of(const Picture &p, int row, int first, int end) {
    const int64_t across = int64_t(p.cols) * SIDE, stride = across + 2;
    for (int y = 0; y < SIDE; y++) {
        const uint8_t *rgb = p.level1 + ((row * SIDE + y) * across + first * SIDE) * 3;
        uint8_t *luma = p.luma + (row * SIDE + y + 1) * stride + first * SIDE + 1;
        for (int x = 0; x < (end - first) * SIDE; x++)
            luma[x] = uint8_t((rgb[3 * x] * 9798 + rgb[3 * x + 1] * 19235 + rgb[3 * x + 2] * 3735 + (1 << 14)) >> 15);
    }
}

INLINE float tile_entropy(const Picture &p, int row, int col) {
    const int64_t stride = int64_t(p.cols) * SIDE + 2;
    uint16_t halves[8][32] = {};  // neighbours are often alike, and one count at a time would wait for the other
    for (int y = 0; y < SIDE; y++) {
        const uint8_t *luma = p.luma + (row * SIDE + y + 1) * stride + col * SIDE + 1;
        for (int x = 0; x < SIDE; x += 8)
            for (int i = 0; i < 8; i++) halves[i][luma[x + i] >> 3]++;
    }
    int64_t aligned = 0, shifted = 0;
    uint16_t count[32] = {};
    for (int k = 0; k < 8; k++)
        for (int i = 0; i < 32; i++) count[i] = uint16_t(count[i] + halves[k][i]);
    for (int i = 0; i < 32; i += 2) aligned += p.count_log[count[i] + count[i + 1]];
    for (int i = 1; i < 31; i += 2) shifted += p.count_log[count[i] + count[i + 1]];
    shifted += p.count_log[count[0]] + p.count_log[count[31]];
    return float(double(p.count_log[SIDE * SIDE] - std::max(aligned, shifted)) / p.entropy_scale);
}

INLINE float tile_variance(const Picture &p, int row, int col) {
    constexpr int LINE = SIDE / 2 * 3;
    const uint8_t *rgb = p.level2 + (int64_t(row) * (SIDE / 2) * p.cols + col) * LINE;
    int32_t columns[LINE] = {}, squared[LINE] = {}, sums[3] = {}, squares[3] = {};
    for (int y = 0; y < SIDE / 2; y++, rgb += int64_t(p.cols) * LINE)
        for (int i = 0; i < LINE; i++) columns[i] += rgb[i], squared[i] += rgb[i] * rgb[i];
    for (int i = 0; i < LINE; i++) sums[i % 3] += columns[i], squares[i % 3] += squared[i];
    float variance[3];
    for (int c = 0; c < 3; c++) {
        const float mean = float(sums[c]) / 64;
        variance[c] = float(squares[c]) / 64 - float(double(mean) * mean);  // rounded apart, not contracted
    }
    return std::max((variance[0] + variance[1] + variance[2]) * p.variance_scale, 0.0f);
}

// Texels of level 1 in a tile.
constexpr int TEXELS = SIDE * SIDE;

INLINE void tile_edges(const Picture &p, int row, int col, float *gx_mean, float *gy_mean, float *magnitude_mean) {
    const int64_t stride = int64_t(p.cols) * SIDE + 2;
    int16_t gx[TEXELS], gy[TEXELS];
    for (int y = 0; y < SIDE; y++) {
        const uint8_t *a = p.luma + (row * SIDE + y) * stride + col * SIDE, *b = a + stride, *c = b + stride;
        for (int x = 0; x < SIDE; x++) {
            gx[y * SIDE + x] = int16_t(a[x + 2] - a[x] + 2 * (b[x + 2] - b[x]) + c[x + 2] - c[x]);
            gy[y * SIDE + x] = int16_t(c[x] - a[x] + 2 * (c[x + 1] - a[x + 1]) + c[x + 2] - a[x + 2]);
        }
    }
    int32_t gx_sum = 0, gy_sum = 0, sum = 0;
    for (int i = 0; i < TEXELS; i++) gx_sum += gx[i], gy_sum += gy[i];
    for (int i = 0; i < TEXELS; i++)
        sum += int32_t(__builtin_rintf(__builtin_sqrtf(float(int32_t(gx[i]) * gx[i] + int32_t(gy[i]) * gy[i]))));
    *gx_mean = float(gx_sum) / TEXELS / 1020.0f;
    *gy_mean = float(gy_sum) / TEXELS / 1020.0f;
    *magnitude_mean = float(sum) / TEXELS / p.magnitude_scale;
}

// Replicates the border of luma by a texel.
INLINE void frame_luma(const Picture &p) {
    const int64_t high = int64_t(p.rows) * SIDE, wide = int64_t(p.cols) * SIDE, stride = wide + 2;
    std::memcpy(p.luma, p.luma + stride, size_t(stride));
    std::memcpy(p.luma + (high + 1) * stride, p.luma + high * stride, size_t(stride));
    for (int64_t y = 0; y < high + 2; y++) p.luma[y * stride] = p.luma[y * stride + 1], p.luma[y * stride + wide + 1] = p.luma[y * stride + wide];
}

INLINE int clamped(int value, int count) { return value < 0 ? 0 : value >= count ? count - 1 : value; }

// Sums of level 5 over (2·reach + 1)² tiles around each of the rows from `first` to before `end`, its border replicated:
// [rows, cols, 3].
INLINE void box_sums(const Picture &p, int reach, int first, int end, int32_t *across, int32_t *sums) {
    const int rows = p.rows, cols = p.cols, wide = cols * 3;
    for (int r = clamped(first - reach, rows); r <= clamped(end - 1 + reach, rows); r++)
        for (int c = 0; c < 3; c++) {
            const uint8_t *line = p.level5 + int64_t(r) * cols * 3 + c;
            int32_t sum = 0, *to = across + int64_t(r) * wide + c;
            for (int x = -reach; x <= reach; x++) sum += line[clamped(x, cols) * 3];
            for (int x = 0; x < cols; x++) {
                to[x * 3] = sum;
                sum += line[clamped(x + reach + 1, cols) * 3] - line[clamped(x - reach, cols) * 3];
            }
        }
    int32_t *top = sums + int64_t(first) * wide;
    for (int x = 0; x < wide; x++) top[x] = 0;
    for (int y = first - reach; y <= first + reach; y++)
        for (int x = 0; x < wide; x++) top[x] += across[int64_t(clamped(y, rows)) * wide + x];
    for (int r = first + 1; r < end; r++) {
        const int32_t *come = across + int64_t(clamped(r + reach, rows)) * wide;
        const int32_t *gone = across + int64_t(clamped(r - reach - 1, rows)) * wide;
        for (int x = 0; x < wide; x++) sums[int64_t(r) * wide + x] = sums[int64_t(r - 1) * wide + x] + come[x] - gone[x];
    }
}

// Intensity, red–green and blue–yellow of a line of `count` colours, times `share`, as float32 [3, count].
template <typename T> INLINE void opponents(const T *rgb, int count, float share, float *out) {
    for (int x = 0; x < count; x++) {
        const float red = float(rgb[3 * x]) * share, green = float(rgb[3 * x + 1]) * share, blue = float(rgb[3 * x + 2]) * share;
        out[x] = (red + green + blue) / (3 * 255.0f);
        out[count + x] = (red - green) / 255.0f;
        out[2 * count + x] = (blue - 0.5f * (red + green)) / 255.0f;
    }
}

// Saliency of the rows from `first` to before `end`.
INLINE void saliency(const Picture &p, int first, int end) {
    const int64_t tiles = int64_t(p.rows) * p.cols;
    const int cols = p.cols;
    int32_t *across = p.sums, *near = p.sums + tiles * 3, *far = near + tiles * 3;
    box_sums(p, 2, first, end, across, near);
    box_sums(p, 5, first, end, across, far);
    float *upper = p.lines, *lower = upper + 6 * cols, *around = lower + 6 * cols, *beyond = around + 3 * cols;
    for (int r = first; r < end; r++) {
        const uint8_t *texels = p.level4 + int64_t(r) * 2 * cols * 6;
        opponents(texels, 2 * cols, 1.0f, upper);
        opponents(texels + cols * 6, 2 * cols, 1.0f, lower);
        opponents(near + int64_t(r) * cols * 3, cols, 1 / 25.0f, around);
        opponents(far + int64_t(r) * cols * 3, cols, 1 / 121.0f, beyond);
        for (int c = 0; c < 3; c++) {
            const float *above = upper + c * 2 * cols, *below = lower + c * 2 * cols;
            const float *close = around + c * cols, *wide = beyond + c * cols;
            float *to = p.channels + (8 + c) * tiles + int64_t(r) * cols;
            for (int x = 0; x < cols; x++) {
                const float high = std::max(std::max(above[2 * x], above[2 * x + 1]), std::max(below[2 * x], below[2 * x + 1]));
                const float low = std::min(std::min(above[2 * x], above[2 * x + 1]), std::min(below[2 * x], below[2 * x + 1]));
                const float found = std::max(high - close[x], close[x] - low) + std::max(high - wide[x], wide[x] - low);
                to[x] = std::min(std::max(found / 2, 0.0f), 1.0f);
            }
        }
    }
}

// Numbers of double precision that are taken together.
constexpr int WIDE = LANES / 2;
typedef double wide __attribute__((vector_size(8 * WIDE)));

INLINE wide load_wide(const double *from) {
    wide value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// How near a colour is to each centre, and to the nearest: its own square less the squared distance.
INLINE wide nearness(const double centre[4][4], const double *colours, int64_t stride, int64_t i, wide *near) {
    const wide red = load_wide(colours + i), green = load_wide(colours + stride + i), blue = load_wide(colours + 2 * stride + i);
    for (int k = 0; k < 4; k++) near[k] = red * centre[k][0] + green * centre[k][1] + blue * centre[k][2] - centre[k][3];
    wide best = near[0];
    for (int k = 1; k < 4; k++) best = near[k] > best ? near[k] : best;
    return best;
}

INLINE double total(wide value) {
    double sum = 0;
    for (int i = 0; i < WIDE; i++) sum += value[i];
    return sum;
}

// Distance of each tile's colour to the nearest cluster; products are exact, so the order of sums is that of the reference.
INLINE void clusters(const Picture &p) {
    const int64_t tiles = int64_t(p.rows) * p.cols, stride = (tiles + WIDE - 1) / WIDE * WIDE;
    double *colours = p.colours;
    for (int c = 0; c < 3; c++) {
        double *line = colours + c * stride;
        for (int64_t i = 0; i < tiles; i++) line[i] = p.level5[i * 3 + c];
        for (int64_t i = tiles; i < stride; i++) line[i] = NAN;  // near to none
    }
    float centre[4][3];
    double twice[4][4];
    std::memcpy(centre, p.centres, sizeof centre);
    wide near[4];
    for (int step = 0;; step++) {
        for (int k = 0; k < 4; k++) {
            const double red = centre[k][0], green = centre[k][1], blue = centre[k][2];
            twice[k][0] = 2 * red, twice[k][1] = 2 * green, twice[k][2] = 2 * blue;
            twice[k][3] = red * red + green * green + blue * blue;
        }
        if (step == p.steps) break;
        wide sums[4][4] = {};
        for (int64_t i = 0; i < stride; i += WIDE) {
            const wide best = nearness(twice, colours, stride, i, near);
            for (int k = 0; k < 4; k++) {
                sums[k][3] += near[k] == best ? wide{} + 1 : wide{};
                for (int c = 0; c < 3; c++) sums[k][c] += near[k] == best ? load_wide(colours + c * stride + i) : wide{};
            }
        }
        for (int k = 0; k < 4; k++) {
            const float count = float(total(sums[k][3]));
            for (int c = 0; c < 3 && count > 0; c++) centre[k][c] = float(total(sums[k][c])) / count;
        }
    }
    float *to = p.channels + CLUSTERS * tiles;
    for (int64_t i = 0; i < stride; i += WIDE) {
        const wide red = load_wide(colours + i), green = load_wide(colours + stride + i), blue = load_wide(colours + 2 * stride + i);
        const wide squared = red * red + green * green + blue * blue - nearness(twice, colours, stride, i, near);
        for (int64_t x = 0; x < std::min<int64_t>(WIDE, tiles - i); x++)
            to[i + x] = __builtin_sqrtf(float(squared[x] > 0 ? squared[x] : 0)) / p.diagonal;
    }
}

TARGET static void channels(const Picture &p) {
    const int64_t tiles = int64_t(p.rows) * p.cols;
    int first = p.rows, end = 0;
    bool at_edge = false;
    for (int r = 0; r < p.rows; r++)
        for (int x = 0, done = 0; x < p.cols; x++) {
            const int64_t tile = int64_t(r) * p.cols + x;
            if (!p.stale[tile]) continue;
            first = std::min(first, r), end = r + 1;
            at_edge |= r == 0 || x == 0 || r == p.rows - 1 || x == p.cols - 1;
            if (x >= done) {
                for (done = x; done < p.cols && p.stale[int64_t(r) * p.cols + done];) done++;
                luma_of(p, r, x, done);
            }
            for (int c = 0; c < 3; c++) p.channels[c * tiles + tile] = p.level5[tile * 3 + c] / 255.0f;
            p.channels[11 * tiles + tile] = tile_variance(p, r, x);
            p.entropy[tile] = tile_entropy(p, r, x);
        }
    if (first >= end) return;
    if (at_edge) frame_luma(p);
    for (int r = clamped(first - 1, p.rows); r <= clamped(end, p.rows); r++)
        for (int x = 0; x < p.cols; x++) {
            bool near = false;
            for (int y = clamped(r - 1, p.rows); y <= clamped(r + 1, p.rows); y++)
                for (int z = clamped(x - 1, p.cols); z <= clamped(x + 1, p.cols); z++)
                    near |= p.stale[int64_t(y) * p.cols + z] != 0;
            float *at = p.channels + int64_t(r) * p.cols + x;
            if (near) tile_edges(p, r, x, at + 5 * tiles, at + 6 * tiles, at + 7 * tiles);
        }
    saliency(p, clamped(first - 5, p.rows), clamped(end + 4, p.rows) + 1);
    clusters(p);
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
            const vec open = sigmoids(gated), seen = sigmoids(stands_out);
            for (int i = 0; i < count; i++) {
                at[i] = entropy[int64_t(r) * s.cols + first + i] * open[i];
                at[tiles + i] = seen[i];
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
            const vec asked = sigmoids(found);
            for (int i = 0; i < count; i++) at[i] = asked[i];
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
