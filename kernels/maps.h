// Maps of tiles over time, for one instruction set: included as scores.h is, behind it. They follow arr_coc/allocation/warping.py,
// temporal.py and, in their structure, attending.py.

// Places between tiles are rounded to this many steps, as OpenCV rounds them for five maps or more.
constexpr float STEPS = 32;

// The four tiles around a place, and how much each counts.
struct Around {
    int64_t at[4];
    float share[4];
};

INLINE float held(float value, float least, float most) { return value < least ? least : value > most ? most : value; }

INLINE Around around(const Grid &g, int64_t tile, const float *origin) {
    const int down = int(std::lrint(held(origin[tile], -2, float(g.rows + 1)) * STEPS));
    const int across = int(std::lrint(held(origin[g.tiles() + tile], -2, float(g.cols + 1)) * STEPS));
    const int row = down >> 5, col = across >> 5;
    const float y = float(down & 31) / STEPS, x = float(across & 31) / STEPS;
    const int64_t top = int64_t(clamped(row, g.rows)) * g.cols, under = int64_t(clamped(row + 1, g.rows)) * g.cols;
    const int left = clamped(col, g.cols), right = clamped(col + 1, g.cols);
    return {{top + left, top + right, under + left, under + right},
            {(1 - y) * (1 - x), (1 - y) * x, y * (1 - x), y * x}};
}

INLINE bool stays(const Grid &g, int64_t tile, int row, int col, const float *origin) {
    return origin[tile] == float(row) && origin[g.tiles() + tile] == float(col);
}

INLINE bool is_inside(const Grid &g, int64_t tile, const float *origin) {
    const float row = origin[tile], col = origin[g.tiles() + tile];
    return row >= -0.5f && row <= float(g.rows) - 0.5f && col >= -0.5f && col <= float(g.cols) - 0.5f;
}

// The tile nearest to a tile's origin.
INLINE int64_t nearest_tile(const Grid &g, int64_t tile, const float *origin) {
    const int row = int(std::lrint(held(origin[tile], 0, float(g.rows - 1))));
    const int col = int(std::lrint(held(origin[g.tiles() + tile], 0, float(g.cols - 1))));
    return int64_t(row) * g.cols + col;
}

// Least weight of known tiles for a value between tiles to be known: KNOWN there.
constexpr float KNOWN = 0.5f;

// `count` maps at the present places, read between tiles; `entering` if the origin is not known.
INLINE void sample_maps(const Grid &g, const float *origin, const float *values, int count, float entering, float *out) {
    const int64_t tiles = g.tiles();
    const bool fills = !std::isnan(entering);
    for (int r = 0; r < g.rows; r++)
        for (int x = 0; x < g.cols; x++) {
            const int64_t tile = int64_t(r) * g.cols + x;
            if (stays(g, tile, r, x, origin)) {
                for (int c = 0; c < count; c++) {
                    const float value = values[c * tiles + tile];
                    out[c * tiles + tile] = fills && std::isnan(value) ? entering : value;
                }
                continue;
            }
            if (!is_inside(g, tile, origin)) {
                for (int c = 0; c < count; c++) out[c * tiles + tile] = entering;
                continue;
            }
            const Around four = around(g, tile, origin);
            for (int c = 0; c < count; c++) {
                const float *map = values + c * tiles;
                float sum = 0, known = 0;
                for (int i = 0; i < 4; i++) {
                    const float value = map[four.at[i]];
                    const bool there = !std::isnan(value);
                    sum += four.share[i] * (there ? value : 0);
                    known += there ? four.share[i] : 0;
                }
                out[c * tiles + tile] = known >= KNOWN ? sum / std::max(known, 1e-6f) : entering;
            }
        }
}

template <typename T>
INLINE void nearest_maps(const Grid &g, const float *origin, const T *values, int64_t count, T entering, T *out) {
    const int64_t tiles = g.tiles();
    for (int r = 0; r < g.rows; r++)
        for (int x = 0; x < g.cols; x++) {
            const int64_t tile = int64_t(r) * g.cols + x;
            if (stays(g, tile, r, x, origin)) {
                for (int64_t c = 0; c < count; c++) out[c * tiles + tile] = values[c * tiles + tile];
                continue;
            }
            const bool inside = is_inside(g, tile, origin);
            const int64_t from = nearest_tile(g, tile, origin);
            for (int64_t c = 0; c < count; c++) out[c * tiles + tile] = inside ? values[c * tiles + from] : entering;
        }
}

TARGET static void nearest(const Grid &g, const float *origin, const void *values, int32_t count, int32_t size,
                           const void *entering, void *out) {
    if (size == 1) nearest_maps(g, origin, (const uint8_t *)values, count, *(const uint8_t *)entering, (uint8_t *)out);
    if (size == 4) nearest_maps(g, origin, (const uint32_t *)values, count, *(const uint32_t *)entering, (uint32_t *)out);
    if (size == 8) nearest_maps(g, origin, (const uint64_t *)values, count, *(const uint64_t *)entering, (uint64_t *)out);
}

// ---- warps ----

// Bilinear values of two maps at a place, up to a tile beyond the edge along their slope, without rounding the place.
INLINE void read_exactly(const Grid &g, const float *maps, float row, float col, float *out) {
    row = held(row, -1, float(g.rows)), col = held(col, -1, float(g.cols));
    const float top = held(std::floor(row), 0, float(std::max(g.rows - 2, 0)));
    const float left = held(std::floor(col), 0, float(std::max(g.cols - 2, 0)));
    const int64_t corner = int64_t(top) * g.cols + int64_t(left), right = std::min(1, g.cols - 1);
    const int64_t below = g.rows > 1 ? g.cols : 0;
    for (int c = 0; c < 2; c++, maps += g.tiles()) {
        const float above = maps[corner] + (col - left) * (maps[corner + right] - maps[corner]);
        const float under = maps[corner + below] + (col - left) * (maps[corner + below + right] - maps[corner + below]);
        out[c] = above + (row - top) * (under - above);
    }
}

// Marks the tiles at whose place the ways around do not lie in a plane.
INLINE void mark_borders(const Grid &g, const float *way, float apart, uint8_t *marked) {
    std::memset(marked, 0, size_t(g.tiles()));
    for (int c = 0; c < 2; c++, way += g.tiles())
        for (int r = 1; r < g.rows - 1; r++)
            for (int x = 1; x < g.cols - 1; x++) {
                const float *at = way + int64_t(r) * g.cols + x;
                double sum = 0;
                for (int y = -1; y <= 1; y++) {
                    const float *line = at + int64_t(y) * g.cols;
                    sum += double(line[-1]) + double(line[0]) + double(line[1]);
                }
                marked[int64_t(r) * g.cols + x] |= std::fabs(*at - float(sum / 9)) > apart;
            }
}

INLINE bool is_marked_near(const Grid &g, const uint8_t *marked, int r, int x) {
    bool near = false;
    for (int y = clamped(r - 1, g.rows); y <= clamped(r + 1, g.rows); y++)
        for (int z = clamped(x - 1, g.cols); z <= clamped(x + 1, g.cols); z++) near |= marked[int64_t(y) * g.cols + z] != 0;
    return near;
}

// Of the nine tiles around a tile's origin, the one whose last motion is the nearest.
INLINE int64_t same_thing(const Grid &g, const float *newest, float row, float col, float down, float across, float near) {
    static const int steps[9][2] = {{0, 0}, {-1, 0}, {0, -1}, {0, 1}, {1, 0}, {-1, -1}, {-1, 1}, {1, -1}, {1, 1}};
    const int64_t tiles = g.tiles();
    const int64_t at_row = std::lrint(double(row)), at_col = std::lrint(double(col));
    int64_t best = 0;
    float least = 0;
    for (int i = 0; i < 9; i++) {
        const int64_t y = std::min<int64_t>(std::max<int64_t>(at_row + steps[i][0], 0), g.rows - 1);
        const int64_t x = std::min<int64_t>(std::max<int64_t>(at_col + steps[i][1], 0), g.cols - 1);
        const int64_t tile = y * g.cols + x;
        const float apart = std::max(std::fabs(newest[tile] - down), std::fabs(newest[tiles + tile] - across));
        const float unlike = float(double(apart) + double(near) * std::hypot(double(y) - row, double(x) - col));
        if (!i || unlike < least) least = unlike, best = tile;
    }
    return best;
}

TARGET static void then(const Grid &g, const Ways &w, float apart, float near, float *way, uint8_t *marked, float *out) {
    const int64_t tiles = g.tiles();
    for (int r = 0; r < g.rows; r++)
        for (int x = 0; x < g.cols; x++) {
            const int64_t tile = int64_t(r) * g.cols + x;
            way[tile] = w.origin[tile] - float(r), way[tiles + tile] = w.origin[tiles + tile] - float(x);
        }
    mark_borders(g, way, apart, marked);
    for (int r = 0; r < g.rows; r++)
        for (int x = 0; x < g.cols; x++) {
            const int64_t tile = int64_t(r) * g.cols + x;
            const float row = w.newer_origin[tile], col = w.newer_origin[tiles + tile];
            const bool moved = !stays(g, tile, r, x, w.newer_origin);
            float read[2] = {way[tile], way[tiles + tile]};
            if (moved) read_exactly(g, way, row, col, read);
            const bool moves = moved || w.newest[tile] != 0 || w.newest[tiles + tile] != 0;
            if (moves && is_marked_near(g, marked, r, x)) {
                const float down = w.newer_newest[tile], across = w.newer_newest[tiles + tile];
                const int64_t like = same_thing(g, w.newest, row, col, down, across, near);
                read[0] = way[like], read[1] = way[tiles + like];
            }
            out[tile] = row + read[0], out[tiles + tile] = col + read[1];
        }
}

// Adds a frame's motion to what is left; gives out what is due in whole tiles.
TARGET static int32_t steps(const Grid &g, const float *origin, float at_tiles, float with_tiles, float *left, float *whole,
                            int32_t *queue, uint8_t *due) {
    const int64_t tiles = g.tiles();
    std::memcpy(whole, left, size_t(tiles) * 8);
    nearest_maps(g, origin, whole, 2, 0.0f, left);
    int64_t count = 0;
    for (int r = 0; r < g.rows; r++)
        for (int x = 0; x < g.cols; x++) {
            const int64_t tile = int64_t(r) * g.cols + x;
            left[tile] += float(r) - origin[tile], left[tiles + tile] += float(x) - origin[tiles + tile];
            whole[tile] = std::max(std::fabs(left[tile]), std::fabs(left[tiles + tile]));
            due[tile] = whole[tile] >= at_tiles;
            if (due[tile]) queue[count++] = int32_t(tile);
        }
    if (!count) return 0;
    while (count) {
        const int tile = queue[--count], r = tile / g.cols, x = tile % g.cols;
        for (int y = clamped(r - 1, g.rows); y <= clamped(r + 1, g.rows); y++)
            for (int z = clamped(x - 1, g.cols); z <= clamped(x + 1, g.cols); z++) {
                const int64_t near = int64_t(y) * g.cols + z;
                if (due[near] || !(whole[near] > with_tiles)) continue;
                due[near] = 1, queue[count++] = int32_t(near);
            }
    }
    for (int c = 0; c < 2; c++)
        for (int64_t i = 0; i < tiles; i++) {
            float &moved = left[c * tiles + i];
            const float step = due[i] ? std::trunc(moved + std::copysign(1 - with_tiles, moved)) : 0;
            whole[c * tiles + i] = step, moved -= step;
        }
    return 1;
}

// ---- blending, and what answers taught ----

// Difference of each tile's looks now and then; NaN if it is not known.
INLINE void changes(const Grid &g, const float *now, const float *then, int count, float *most) {
    std::memset(most, 0, size_t(g.tiles()) * 4);
    for (int c = 0; c < count; c++, now += g.tiles(), then += g.tiles())
        for (int64_t i = 0; i < g.tiles(); i++) {
            const float apart = std::fabs(now[i] - then[i]);
            most[i] = apart > most[i] || apart != apart ? apart : most[i];
        }
}

// Blends a frame with the past, which moved by `origin` or, null, did not. Returns whether a tile left the dead band.
TARGET static int32_t blend(const Grid &g, const Blend &b, float *blended, float *kept, float *largest) {
    const int64_t tiles = g.tiles();
    const float *past = b.blended, *before = b.held, *looked = b.looked;
    if (b.origin) {
        sample_maps(g, b.origin, past, 1, NAN, blended);
        sample_maps(g, b.origin, before, 1, NAN, kept);
        sample_maps(g, b.origin, looked, b.count, NAN, b.scratch);
        past = blended, before = kept, looked = b.scratch;
    }
    float *change = b.scratch + b.count * tiles;
    changes(g, b.looks, looked, b.count, change);
    int32_t left = 0;
    float most = 0;
    for (int64_t i = 0; i < tiles; i++) {
        const float now = b.current[i], share = change[i] / b.renewal;
        const float mixed = now + b.share * (1 - (share < 1 ? share : share == share ? 1 : share)) * (past[i] - now);
        const float value = mixed == mixed ? mixed : now;
        const bool leaves = !(std::fabs(value - before[i]) <= b.band);
        most = std::max(most, std::fabs(value - now));
        left |= leaves;
        kept[i] = leaves ? value : before[i];
        blended[i] = value;
    }
    *largest = most;
    return left;
}

// Attention, similarity and trust at a time, of what was learned on the grid from which `origin` leads to now.
TARGET static void recall(const Grid &g, const Learned &l, const float *looks, int32_t count, double now_ns, float *prior) {
    const int64_t tiles = g.tiles();
    double last_ns = 0, faded = 0;
    bool again = false;
    if (l.origin) sample_maps(g, l.origin, l.known, 2, 0, prior);
    else std::memcpy(prior, l.known, size_t(tiles) * 8);
    const float *looked = l.looked;
    if (l.origin) sample_maps(g, l.origin, looked, count, NAN, l.scratch), looked = l.scratch;
    float *change = l.scratch + count * tiles;
    changes(g, looks, looked, count, change);
    for (int r = 0; r < g.rows; r++)
        for (int x = 0; x < g.cols; x++) {
            const int64_t tile = int64_t(r) * g.cols + x;
            int64_t from = tile;
            bool inside = true;
            if (l.origin && !stays(g, tile, r, x, l.origin))
                inside = is_inside(g, tile, l.origin), from = nearest_tile(g, tile, l.origin);
            const double learned_ns = inside ? l.learned_ns[from] : -INFINITY;
            if (!again || learned_ns != last_ns)
                faded = std::exp(-std::max(now_ns - learned_ns, 0.0) / 1e9 / l.fade_s), last_ns = learned_ns, again = true;
            const float apart = change[tile] == change[tile] ? change[tile] : 0;
            const float same = 1 - std::min(apart / l.renewal, 1.0f);
            prior[2 * tiles + tile] = float((inside ? double(l.confidence[from]) : 0) * faded * double(same));
        }
}

// ---- what changed ----

// Values that are farther than `band` from what is kept take its place. Returns whether there are any.
TARGET static int32_t drift(const Grid &g, const float *values, const float *kept, float band, float *out) {
    int32_t left = 0;
    for (int64_t i = 0; i < g.tiles(); i++) {
        const int32_t leaves = !(std::fabs(values[i] - kept[i]) <= band);
        left |= leaves;
        out[i] = leaves ? values[i] : kept[i];
    }
    return left;
}

// Share of relevance on tiles whose version is another than the marked one; of the tiles if nothing is relevant.
TARGET static double changed(const Grid &g, const int64_t *marked, const int64_t *versions, const float *relevance) {
    double moved = 0, all = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < g.tiles(); i++) {
        const bool is = marked[i] != versions[i];
        moved += is ? double(relevance[i]) : 0, all += double(relevance[i]), count += is;
    }
    return all > 0 ? moved / all : double(count) / double(g.tiles());
}

// ---- the guard against pictures without structure ----

// Mean correlation of horizontal and vertical neighbours.
INLINE double coherence(const Grid &g, const float *map) {
    double sum = 0, across = 0, down = 0, squares = 0;
    for (int64_t i = 0; i < g.tiles(); i++) sum += double(map[i]);
    const double mean = sum / double(g.tiles());
    for (int r = 0; r < g.rows; r++)
        for (int x = 0; x < g.cols; x++, map++) {
            const double value = *map - mean;
            squares += value * value;
            across += x ? value * (map[-1] - mean) : 0;
            down += r ? value * (map[-g.cols] - mean) : 0;
        }
    const int64_t pairs = 2 * g.tiles() - g.rows - g.cols;
    return squares > 0 ? (across + down) / double(pairs) * double(g.tiles()) / squares : 0;
}

// 2·H − 1 with Hoyer's H of what exceeds the median; changes the order of the values.
INLINE double sparsity(float *values, int64_t count) {
    float *upper = values + count / 2, *end = values + count;
    std::nth_element(values, upper, end);
    const float median = count % 2 ? *upper : (*upper + *std::max_element(values, upper)) / 2;
    double sum = 0, squares = 0;
    for (const float *value = upper; value < end; value++) {
        const double above = *value - median;
        sum += above, squares += above * above;
    }
    const double root = std::sqrt(double(count));
    return squares > 0 ? 2 * (root - sum / std::sqrt(squares)) / (root - 1) - 1 : 0;
}

// Whether a colour differs from its neighbours' mean by less than `step` everywhere; a strip has no neighbours all around.
INLINE bool only_bends(const Grid &g, const float *map, float step) {
    float most = g.rows < 3 || g.cols < 3 ? step : 0;
    for (int r = 1; r < g.rows - 1; r++)
        for (int x = 1; x < g.cols - 1; x++) {
            const float *at = map + int64_t(r) * g.cols + x;
            most = std::max(most, std::fabs(*at - (at[-g.cols] + at[g.cols] + at[-1] + at[1]) / 4));
        }
    return most < step;
}

INLINE float range(const float *map, int64_t count) {
    const auto ends = std::minmax_element(map, map + count);
    return *ends.second - *ends.first;
}

// Structure of a map, or of a picture [7, rows, cols] without its slopes: of edges first, which are no light.
TARGET static float structure(const Grid &g, const Guard &guard, const float *maps) {
    const int64_t tiles = g.tiles();
    const float *edges = maps + 5 * tiles;
    float *rest = guard.rest;
    double most = 0;
    for (const int kind : {3, 0, 1, 2, 4}) {
        if (!guard.surfaces && kind) continue;
        const float *map = maps + (kind < 3 ? kind : kind + 2) * tiles, *surface = guard.surfaces;
        double slopes[6] = {};
        if (surface)
            for (int64_t i = 0; i < tiles; i++)
                for (int k = 0; k < 6; k++) slopes[k] += double(map[i]) * double(surface[6 * i + k]);
        for (int64_t i = 0; i < tiles; i++) {
            double slope = 0;
            for (int k = 0; surface && k < 6; k++) slope += slopes[k] * double(surface[6 * i + k]);
            rest[i] = float(map[i] - slope);
        }
        if (range(rest, tiles) < guard.least[kind]) continue;
        if (surface && (kind < 3 ? only_bends(g, map, guard.step) : kind == 4 && range(edges, tiles) < guard.edges)) continue;
        most = std::max(most, coherence(g, rest));
        for (int64_t i = 0; surface && i < tiles; i++) rest[i] = std::fabs(rest[i]);
        if (most < guard.clear) most = std::max(most, sparsity(rest, tiles));
        if (most >= guard.clear) break;
    }
    return float(std::min(most, 1.0));
}
