// The passes over tiles, for one instruction set: included once for each, in a namespace of its own, with TARGET the
// attribute that names the set. Arrays of fixed size in plain loops, which compilers turn into vector instructions.

#define INLINE TARGET __attribute__((always_inline)) static inline

typedef uint16_t __attribute__((may_alias)) pair;

// COUNT texels of three planes to RGB.
template <int COUNT>
INLINE void interleave(uint8_t *__restrict rgb, const uint8_t *r, const uint8_t *g, const uint8_t *b) {
    for (int x = 0; x < COUNT; ++x) rgb[3 * x] = r[x], rgb[3 * x + 1] = g[x], rgb[3 * x + 2] = b[x];
}

// COUNT texels of RGB to three planes. Apart, because in a loop over rows compilers unroll it before they see vectors.
template <int COUNT>
TARGET __attribute__((noinline)) static void deinterleave(const uint8_t *rgb, uint8_t *__restrict r, uint8_t *__restrict g,
                                                          uint8_t *__restrict b) {
    for (int x = 0; x < COUNT; ++x) r[x] = rgb[3 * x], g[x] = rgb[3 * x + 1], b[x] = rgb[3 * x + 2];
}

// The box filter (a + b + c + d + 2) >> 2 over `rows` rows of W samples that follow one another.
template <int W> INLINE void halve(const uint8_t *fine, uint8_t *coarse, int rows) {
    for (int y = 0; y < rows / 2; ++y) {
        const pair *a = (const pair *)(fine + 2 * y * W), *b = (const pair *)(fine + (2 * y + 1) * W);
        for (int x = 0; x < W / 2; ++x)
            coarse[y * (W / 2) + x] =
                (uint8_t)((uint16_t)((a[x] & 255) + (a[x] >> 8) + (b[x] & 255) + (b[x] >> 8) + 2) >> 2);
    }
}

// The largest cell of `rows` rows of W differences, a multiple of 4; adds their means over 4×4 to `sum`.
template <int W> INLINE uint8_t measure(const uint8_t *delta, int rows, int &sum) {
    alignas(64) uint8_t cells[8 * W], quarters[8 * W];
    halve<W>(delta, cells, rows);
    uint8_t peak = 0;
    for (int x = 0; x < rows / 2 * W / 2; ++x) peak = peak > cells[x] ? peak : cells[x];
    halve<W / 2>(cells, quarters, rows / 2);
    for (int x = 0; x < rows / 4 * W / 4; ++x) sum += quarters[x];
    return peak;
}

// Whether a mean, rounded with halves to even, exceeds `mean`.
INLINE bool exceeds(int sum, int count, int mean) {
    const int whole = sum / count, rest = 2 * (sum % count);
    return whole + (rest > count || (rest == count && whole % 2)) > mean;
}

typedef uint64_t __attribute__((vector_size(VECTOR), may_alias)) Lanes;
typedef uint32_t __attribute__((vector_size(VECTOR))) Words;
typedef int __attribute__((vector_size(VECTOR))) Ints;
typedef char __attribute__((vector_size(VECTOR))) Bytes;
typedef long long __attribute__((vector_size(VECTOR))) Longs;

INLINE uint8_t apart(uint8_t a, uint8_t b) { return (uint8_t)(a > b ? a - b : b - a); }

// What is known of each sample of some lines, and of eight samples together: the largest difference, and their sum.
struct Peaks {
    uint8_t *largest;
    uint64_t *sums;
};

INLINE void add_sums(const uint8_t *a, const uint8_t *b, int64_t bytes, uint64_t *sums) {
    int64_t x = 0;
    for (; x + VECTOR <= bytes; x += VECTOR) {
        Lanes one, other;
        std::memcpy(&one, a + x, VECTOR);
        std::memcpy(&other, b + x, VECTOR);
        *(Lanes *)(sums + x / 8) += APART(one, other);
    }
    for (; x < bytes; ++x) sums[x / 8] += apart(a[x], b[x]);
}

// Finds the differences of `rows` rows: what could make a tile dirty shows there. False if all are equal, and `peaks` then
// stays as it is.
TARGET static bool scan(const uint8_t *a, int64_t a_stride, const uint8_t *b, int64_t b_stride, int rows, int64_t bytes,
                        Peaks peaks) {
    bool found = false;
    uint8_t *__restrict most = peaks.largest;
    for (int y = 0; y < rows; ++y, a += a_stride, b += b_stride) {
        if (!std::memcmp(a, b, (size_t)bytes)) continue;
        if (!found) {
            std::memset(most, 0, (size_t)bytes);
            std::memset(peaks.sums, 0, (size_t)(bytes + 7) / 8 * 8);
        }
        found = true;
        for (int64_t x = 0; x < bytes; ++x) {
            const uint8_t delta = apart(a[x], b[x]);
            most[x] = most[x] > delta ? most[x] : delta;
        }
        add_sums(a, b, bytes, peaks.sums);
    }
    return found;
}

template <int W, int C>
TARGET static bool differs(const Kept &kept, const Plane &frame, int row, int col, int mean, int largest) {
    const int height = std::min(kept.tile_height, kept.height - row * kept.tile_height);
    const int width = std::min(W, kept.width - col * W);
    const uint8_t *a = frame.data + row * kept.tile_height * frame.stride + col * W * C;
    const uint8_t *b = kept.data + row * kept.tile_height * kept.stride + col * W * C;
    alignas(64) uint8_t delta[C][32 * W];
    int sums[C] = {};
    for (int y = 0; y < kept.tile_height; ++y) {
        const int from = std::min(y, height - 1);
        const uint8_t *p = a + from * frame.stride, *q = b + from * kept.stride;
        if (y < 4) {  // if everything changed, no more is read of the tiles to the right either
            __builtin_prefetch(p + 2 * LINE);
            __builtin_prefetch(q + 2 * LINE);
        }
        for (int c = 0; c < C; ++c) {
            uint8_t *to = delta[c] + y * W;
            if (width == W)
                for (int x = 0; x < W; ++x) to[x] = apart(p[C * x + c], q[C * x + c]);
            else
                for (int x = 0; x < W; ++x) {
                    const int at = C * std::min(x, width - 1) + c;
                    to[x] = apart(p[at], q[at]);
                }
        }
        if (y == 3)  // much of what differs shows here
            for (int c = 0; c < C; ++c)
                if (measure<W>(delta[c], 4, sums[c]) > largest) return true;
    }
    for (int c = 0; c < C; ++c)
        if (measure<W>(delta[c] + 4 * W, kept.tile_height - 4, sums[c]) > largest ||
            exceeds(sums[c], W / 4 * (kept.tile_height / 4), mean))
            return true;
    return false;
}

TARGET static bool tile_differs(const Texture &t, int p, const Plane &frame, int row, int col, int mean, int largest) {
    const Kept &kept = t.kept[p];
    if (t.channels == 3) return differs<32, 3>(kept, frame, row, col, mean, largest);
    if (kept.tile_width == 32) return differs<32, 1>(kept, frame, row, col, mean, largest);
    if (kept.tile_width == 16) return differs<16, 1>(kept, frame, row, col, mean, largest);
    return differs<8, 1>(kept, frame, row, col, mean, largest);
}

// Marks the tiles of a row that differ in one plane and are not marked yet. Means of means, each rounded, exceed the mean of
// all samples by one at most, so that the sums settle most tiles with noise as equal.
TARGET static void compare_plane(const Texture &t, int p, const Plane &frame, int row, int mean, int largest, Peaks peaks,
                                 uint8_t *dirty) {
    const Kept &kept = t.kept[p];
    const int first = row * kept.tile_height, rows = std::min(kept.tile_height, kept.height - first);
    const int bytes = kept.width * t.channels, step = kept.tile_width * t.channels;
    if (!scan(frame.data + first * frame.stride, frame.stride, kept.data + first * kept.stride, kept.stride, rows, bytes,
              peaks))
        return;
    for (int col = 0; col < t.cols; ++col) {
        if (dirty[col]) continue;
        uint8_t peak = 0;
        const int end = std::min(bytes, (col + 1) * step);
        for (int x = col * step; x < end; ++x) peak = peak > peaks.largest[x] ? peak : peaks.largest[x];
        if (peak <= std::min(mean, largest)) continue;
        if (peak <= largest && t.channels == 1 && rows == kept.tile_height && end == (col + 1) * step) {
            uint64_t sum = 0;
            for (int x = col * step; x < end; x += 8) sum += peaks.sums[x / 8];
            if (2 * (int64_t)sum < (int64_t)(2 * mean - 1) * rows * step) continue;
        }
        dirty[col] = tile_differs(t, p, frame, row, col, mean, largest);
    }
}

// Marks the tiles of a row that differ: dirty [cols]. If all of the row before did (`busy`), each is looked at by itself
// first, because what differs much shows in its first rows: most of a frame that differs everywhere is then not read.
TARGET static void compare_samples(const Texture &t, const Plane *frame, int row, int mean, int largest, bool busy,
                                   Peaks peaks, uint8_t *dirty) {
    for (int col = 0; col < t.cols; ++col)
        dirty[col] = busy && tile_differs(t, 0, frame[0], row, col, mean, largest);
    for (int p = 0; p < t.planes && __builtin_memchr(dirty, 0, (size_t)t.cols); ++p)
        compare_plane(t, p, frame[p], row, mean, largest, peaks, dirty);
}

// Adds the products of `bytes` samples of one line, LANES times eight of them a tile, to both halves of its tiles' sums.
template <int LANES>
INLINE void hash_line(const uint8_t *from, int64_t bytes, const uint32_t *key, Lanes *one, Lanes *two) {
    constexpr int PERIOD = LANES == 12 ? 192 : 64, COUNT = PERIOD / VECTOR;
    alignas(64) uint32_t keys[2][PERIOD / 4];
    for (int i = 0; i < PERIOD / 4; ++i) {
        keys[0][i] = key[i % (2 * LANES)];
        keys[1][i] = key[i % (2 * LANES) + 2];
    }
    alignas(64) uint8_t last[PERIOD] = {};
    for (int64_t x = 0; x < bytes; x += PERIOD) {
        if (x + PERIOD > bytes) {
            std::memcpy(last, from, (size_t)(bytes - x));
            from = last;
        }
        for (int i = 0; i < PERIOD; i += LINE) __builtin_prefetch(from + AHEAD + i);
        for (int i = 0; i < COUNT; ++i, from += VECTOR, ++one, ++two) {
            Words words, a, b;
            std::memcpy(&words, from, VECTOR);
            std::memcpy(&a, keys[0] + i * VECTOR / 4, VECTOR);
            std::memcpy(&b, keys[1] + i * VECTOR / 4, VECTOR);
            a += words;
            b += words;
            *one += PRODUCTS(a, (Lanes)a >> 32);
            *two += PRODUCTS(b, (Lanes)b >> 32);
        }
    }
}

// Adds the part of one plane to the hashes of a row of tiles; returns the keys of the next plane.
template <int LANES>
TARGET static const uint32_t *hash_plane(const Texture &t, const Kept &kept, const Plane &frame, int row,
                                         const uint32_t *key, uint64_t *sums, Hash *hashes) {
    const int top = row * kept.tile_height, rows = std::min(kept.tile_height, kept.height - top);
    const int room = (t.cols * LANES + 24 + 7) / 8 * 8;  // what the last period needs, in whole lines
    std::memset(sums, 0, (size_t)room * 16);
    for (int y = 0; y < rows; ++y)
        hash_line<LANES>(frame.data + (top + y) * frame.stride, kept.width * t.channels, key + y * 2 * LANES,
                         (Lanes *)sums, (Lanes *)(sums + room));
    for (int col = 0; col < t.cols; ++col)
        for (int half = 0; half < 2; ++half)
            for (int i = 0; i < LANES; ++i) hashes[col].half[half] += sums[half * room + col * LANES + i];
    return key + kept.tile_height * 2 * LANES;
}

// The hashes of a row of tiles of a frame.
TARGET static void hash_row(const Texture &t, const Plane *frame, int row, uint64_t *sums, Hash *hashes) {
    const uint32_t *key = KEYS.words;
    std::memset(hashes, 0, (size_t)t.cols * sizeof(Hash));
    for (int p = 0; p < t.planes; ++p) {
        const Kept &kept = t.kept[p];
        if (t.channels == 3) key = hash_plane<12>(t, kept, frame[p], row, key, sums, hashes);
        else if (kept.tile_width == 32) key = hash_plane<4>(t, kept, frame[p], row, key, sums, hashes);
        else if (kept.tile_width == 16) key = hash_plane<2>(t, kept, frame[p], row, key, sums, hashes);
        else key = hash_plane<1>(t, kept, frame[p], row, key, sums, hashes);
    }
}

INLINE bool equal(const Hash &a, const Hash &b) { return a.half[0] == b.half[0] && a.half[1] == b.half[1]; }

// Marks the tiles of a row that differ: dirty [cols]. Samples with a known hash were compared before, so that what stays
// is read once and the kept samples not at all; two tiles have one hash by chance with a probability below 2^-60. If
// more than half of a row changes twice, hashing does not pay: its samples are compared for some frames.
TARGET static bool compare_row(const Texture &t, const Plane *frame, int row, int mean, int largest, bool busy,
                               Scratch scratch, uint8_t *dirty) {
    const int REST = 8;
    Hash *known = t.known + (int64_t)row * t.cols, *hashes = scratch.hashes;
    uint8_t &rest = t.rest[row];
    if (rest > 1) {
        rest = (uint8_t)(rest == 2 ? 0 : rest - 1);
        compare_samples(t, frame, row, mean, largest, busy, {scratch.peaks, scratch.sums}, dirty);
        return !__builtin_memchr(dirty, 0, (size_t)t.cols);
    }
    hash_row(t, frame, row, scratch.sums, hashes);
    int changed = 0;
    for (int col = 0; col < t.cols; ++col) changed += !equal(hashes[col], known[col]);
    if (2 * changed > t.cols) {
        rest = rest ? 1 + REST : 1;
        compare_samples(t, frame, row, mean, largest, busy, {scratch.peaks, scratch.sums}, dirty);
    } else {
        rest = 0;
        for (int col = 0; col < t.cols; ++col) {
            dirty[col] = 0;
            if (equal(hashes[col], known[col])) continue;
            for (int p = 0; p < t.planes && !dirty[col]; ++p)
                dirty[col] = tile_differs(t, p, frame[p], row, col, mean, largest);
        }
    }
    for (int col = 0; col < t.cols; ++col)
        if (!dirty[col]) known[col] = hashes[col];
    return !__builtin_memchr(dirty, 0, (size_t)t.cols);
}

// Copies rows of BYTES samples; past the caches, if whole lines are written.
template <int BYTES>
INLINE void copy_rows(uint8_t *to, int64_t to_stride, const uint8_t *from, int64_t from_stride, int rows) {
    const bool lines = BYTES % LINE == 0 && (uintptr_t)to % LINE == 0 && to_stride % LINE == 0;
    for (int y = 0; y < rows; ++y, to += to_stride, from += from_stride)
        if (lines) stream(to, from, BYTES);
        else std::memcpy(to, from, BYTES);
}

// Takes a run of N tiles from the frame into the kept plane, whose padding repeats the frame's edge.
template <int N> INLINE void take(const Kept &kept, const Plane &frame, int channels, int row, int col) {
    const int top = row * kept.tile_height, height = std::min(kept.tile_height, kept.height - top);
    const int bytes = N * kept.tile_width * channels, left = col * kept.tile_width * channels;
    const int there = std::min(bytes, kept.width * channels - left);
    const uint8_t *from = frame.data + top * frame.stride + left;
    uint8_t *to = kept.data + top * kept.stride + left;
    if (there == 32 * N) copy_rows<32 * N>(to, kept.stride, from, frame.stride, height);
    else if (there == 16 * N) copy_rows<16 * N>(to, kept.stride, from, frame.stride, height);
    else if (there == 96 * N) copy_rows<96 * N>(to, kept.stride, from, frame.stride, height);
    else for (int y = 0; y < height; ++y) std::memcpy(to + y * kept.stride, from + y * frame.stride, (size_t)there);
    if (there < bytes)
        for (int y = 0; y < height; ++y)
            for (int x = there; x < bytes; ++x) to[y * kept.stride + x] = to[y * kept.stride + x - channels];
    for (int y = height; y < kept.tile_height; ++y)
        std::memcpy(to + y * kept.stride, to + (height - 1) * kept.stride, (size_t)bytes);
}

// a * b / 2^15, rounded.
INLINE int16_t times(int16_t a, int16_t b) { return (int16_t)((((int32_t)a * b >> 14) + 1) >> 1); }

INLINE uint8_t byte_of(int16_t value) {
    value = (int16_t)(value >> 5);
    value = value < 0 ? (int16_t)0 : value;
    return (uint8_t)(value > 255 ? (int16_t)255 : value);
}

// Planes of a run of N tiles to red, green and blue [32, 32 * N] each; a sample of chroma spans SX columns, SY rows.
template <int N, int SX, int SY> INLINE void convert(const Texture &t, const Plane *from, uint8_t *rgb) {
    constexpr int W = 32 * N, CW = W / SX;
    const int16_t *scale = t.scale, *offset = t.offset;
    alignas(64) int16_t u[CW], v[CW], red_part[W], green_part[W], blue_part[W], l[W];
    for (int c = 0; c < 32 / SY; ++c) {
        const uint8_t *us = from[1].data + c * from[1].stride, *vs = from[2].data + c * from[2].stride;
        for (int x = 0; x < CW; ++x) {
            u[x] = (int16_t)((us[x] - 128) * 256);
            v[x] = (int16_t)((vs[x] - 128) * 256);
        }
        for (int x = 0; x < CW; ++x) {
            const int16_t red = (int16_t)(times(v[x], scale[1]) + offset[0]);
            const int16_t green = (int16_t)(times(u[x], scale[2]) + times(v[x], scale[3]) + offset[1]);
            const int16_t blue = (int16_t)(times(u[x], scale[4]) + offset[2]);
            for (int i = 0; i < SX; ++i) {
                red_part[SX * x + i] = red;
                green_part[SX * x + i] = green;
                blue_part[SX * x + i] = blue;
            }
        }
        for (int y = c * SY; y < c * SY + SY; ++y) {
            const uint8_t *samples = from[0].data + y * from[0].stride;
            for (int x = 0; x < W; ++x) l[x] = (int16_t)(samples[x] * 128);
            for (int x = 0; x < W; ++x) {
                const int16_t bright = times(l[x], scale[0]);
                rgb[y * W + x] = byte_of((int16_t)(bright + red_part[x]));
                rgb[(32 + y) * W + x] = byte_of((int16_t)(bright + green_part[x]));
                rgb[(64 + y) * W + x] = byte_of((int16_t)(bright + blue_part[x]));
            }
        }
    }
}

// Stores a run of N tiles on a level, from its red, green and blue.
template <int N, int LEVEL> INLINE void put(const Texture &t, int row, int col, const uint8_t *rgb) {
    constexpr int side = 32 >> LEVEL, W = side * N;
    const int64_t stride = (int64_t)t.cols * side * 3;
    alignas(LINE) uint8_t texels[3 * side * W];
    interleave<side * W>(texels, rgb, rgb + side * W, rgb + 2 * side * W);
    copy_rows<3 * W>(t.levels[LEVEL] + row * side * stride + col * side * 3, stride, texels, 3 * W, side);
}

// The levels of a run of N tiles, from its red, green and blue.
template <int N> INLINE void put_levels(const Texture &t, int row, int col, const uint8_t *rgb) {
    alignas(64) uint8_t one[3 * 16 * 16 * N], two[3 * 8 * 8 * N], three[3 * 4 * 4 * N], four[3 * 2 * 2 * N], five[3 * N];
    if (t.level_count < 2) return;
    halve<32 * N>(rgb, one, 96);
    put<N, 1>(t, row, col, one);
    halve<16 * N>(one, two, 48);
    put<N, 2>(t, row, col, two);
    halve<8 * N>(two, three, 24);
    put<N, 3>(t, row, col, three);
    halve<4 * N>(three, four, 12);
    put<N, 4>(t, row, col, four);
    halve<2 * N>(four, five, 6);
    put<N, 5>(t, row, col, five);
}

// A run's samples in `planes`, which begin at the frame's first sample.
INLINE void samples_of(const Texture &t, const Plane *planes, int row, int col, Plane *run) {
    for (int p = 0; p < t.planes; ++p) {
        const Kept &kept = t.kept[p];
        const int64_t top = row * kept.tile_height, left = col * kept.tile_width * t.channels;
        run[p] = {planes[p].data + top * planes[p].stride + left, planes[p].stride};
    }
}

// The kept samples of a run.
INLINE void kept_samples(const Texture &t, int row, int col, Plane *run) {
    Plane planes[3];
    for (int p = 0; p < t.planes; ++p) planes[p] = {t.kept[p].data, t.kept[p].stride};
    samples_of(t, planes, row, col, run);
}

// The samples of a run of N tiles to red, green and blue [32, 32 * N] each.
template <int N>
TARGET static void colours(const Texture &t, const Plane *from, uint8_t *rgb) {
    constexpr int W = 32 * N;
    const Plane &first = from[0];
    if (t.channels == 3) {
        for (int y = 0; y < 32; ++y)
            deinterleave<W>(first.data + y * first.stride, rgb + y * W, rgb + (32 + y) * W, rgb + (64 + y) * W);
        return;
    }
    if (t.planes == 1) {
        for (int y = 0; y < 32; ++y)
            for (int c = 0; c < 3; ++c) std::memcpy(rgb + (32 * c + y) * W, first.data + y * first.stride, W);
        return;
    }
    switch (32 / t.kept[1].tile_height * 8 + 32 / t.kept[1].tile_width) {
        case 8 + 1: convert<N, 1, 1>(t, from, rgb); break;
        case 8 + 2: convert<N, 2, 1>(t, from, rgb); break;
        case 8 + 4: convert<N, 4, 1>(t, from, rgb); break;
        case 16 + 1: convert<N, 1, 2>(t, from, rgb); break;
        case 16 + 2: convert<N, 2, 2>(t, from, rgb); break;
        case 16 + 4: convert<N, 4, 2>(t, from, rgb); break;
        case 32 + 1: convert<N, 1, 4>(t, from, rgb); break;
        case 32 + 2: convert<N, 2, 4>(t, from, rgb); break;
        default: convert<N, 4, 4>(t, from, rgb);
    }
}

// Takes a run of N tiles from the frame, and brings its coarser levels up to date.
struct Update {
    template <int N> TARGET static void run(const Texture &t, const Plane *frame, int row, int col) {
        for (int p = 0; p < t.planes; ++p) take<N>(t.kept[p], frame[p], t.channels, row, col);
        if (t.level_count < 2) return;
        alignas(64) uint8_t rgb[3 * 32 * 32 * N];
        Plane from[3] = {};  // the kept samples if the run has padding
        if ((row + 1) * 32 <= t.kept[0].height && (col + N) * 32 <= t.kept[0].width) samples_of(t, frame, row, col, from);
        else kept_samples(t, row, col, from);
        colours<N>(t, from, rgb);
        put_levels<N>(t, row, col, rgb);
    }
};

// Brings level 0 of a run of N tiles up to date, from the kept samples.
struct Finest {
    template <int N> TARGET static void run(const Texture &t, const Plane *, int row, int col) {
        alignas(64) uint8_t rgb[3 * 32 * 32 * N];
        Plane from[3] = {};
        kept_samples(t, row, col, from);
        colours<N>(t, from, rgb);
        put<N, 0>(t, row, col, rgb);
    }
};

// Does Work to the marked [cols] tiles of a row: by fours, which fill lines, and one by one.
template <class Work> TARGET static void each_run(const Texture &t, const Plane *frame, int row, const uint8_t *marked) {
    for (int col = 0; col < t.cols; ++col) {
        if (col % 4 == 0 && col + 4 <= t.cols && marked[col] && marked[col + 1] && marked[col + 2] && marked[col + 3]) {
            Work::template run<4>(t, frame, row, col);
            col += 3;
        } else if (marked[col]) {
            Work::template run<1>(t, frame, row, col);
        }
    }
}

TARGET static void update_row(const Texture &t, const Plane *frame, int row, const uint8_t *dirty) {
    for (int col = 0; col < t.cols; ++col)
        if (dirty[col]) t.known[(int64_t)row * t.cols + col] = {};
    each_run<Update>(t, frame, row, dirty);
}

TARGET static void finest_row(const Texture &t, int row, const uint8_t *stale) {
    each_run<Finest>(t, nullptr, row, stale);
}

// The pixels of a region of level 0, from the kept samples: tile by tile, of which each becomes a part of them.
TARGET static void convert_region(const Texture &t, int64_t row, int64_t col, int down, int across, uint8_t *out) {
    const int texels = down * across, shift = __builtin_ctz((unsigned)texels), high = 32 / down, wide = 32 / across;
    alignas(64) uint8_t rgb[3 * 32 * 32];
    for (int n = 0; n < texels; ++n) {
        const int64_t tile_row = row * down + (down > 1 ? n : 0), tile_col = col * across + (across > 1 ? n : 0);
        const bool below = tile_row >= t.rows, right = tile_col >= t.cols;
        Plane from[3] = {};
        kept_samples(t, below ? t.rows - 1 : (int)tile_row, right ? t.cols - 1 : (int)tile_col, from);
        if (texels == 1) return colours<1>(t, from, out);
        colours<1>(t, from, rgb);
        uint8_t *to = out + (down > 1 ? n * high * 32 : n * wide);
        for (int c = 0; c < 3; ++c)
            for (int y = 0; y < high; ++y)
                for (int x = 0; x < wide; ++x) {
                    int sum = texels / 2;
                    for (int k = 0; k < texels; ++k) {
                        const int texel_y = below ? 31 : down > 1 ? y * down + k : y;
                        const int texel_x = right ? 31 : across > 1 ? x * across + k : x;
                        sum += rgb[(32 * c + texel_y) * 32 + texel_x];
                    }
                    to[(32 * c + y) * 32 + x] = (uint8_t)(sum >> shift);
                }
    }
}

// The pixels of regions, each the mean of down * across texels.
TARGET static void gather(const Texture &t, const int64_t *regions, int64_t count, const int32_t *footprints, uint8_t *out) {
    for (int64_t i = 0; i < count; ++i, regions += 3, out += 3 * 32 * 32) {
        const int32_t *print = footprints + 3 * regions[0];
        const int side = 32 >> print[0], down = print[1], across = print[2], texels = down * across;
        if (!print[0] && t.channels == 1) {
            convert_region(t, regions[1], regions[2], down, across, out);
            continue;
        }
        const int64_t stride = (int64_t)t.cols * side * 3, left = regions[2] * 96 * across, bottom = t.rows * side - 1;
        const int bytes = 96 * across, there = (int)std::min<int64_t>(bytes, stride - left);
        uint8_t edge[96 * 8];
        uint16_t sums[96 * 8];
        for (int y = 0; y < 32; ++y) {
            uint8_t *to = out + 32 * y;
            for (int k = 0; k < down; ++k) {
                const uint8_t *from = t.levels[print[0]] + std::min((regions[1] * 32 + y) * down + k, bottom) * stride + left;
                if (there < bytes) {
                    std::memcpy(edge, from, (size_t)there);
                    for (int x = there; x < bytes; ++x) edge[x] = edge[x - 3];
                    from = edge;
                }
                if (texels == 1) deinterleave<32>(from, to, to + 1024, to + 2048);
                else
                    for (int x = 0; x < bytes; ++x) sums[x] = (uint16_t)((k ? sums[x] : 0) + from[x]);
            }
            for (int x = 0; texels > 1 && x < 96; ++x) {
                int sum = texels / 2;
                for (int k = 0; k < across; ++k) sum += sums[x / 3 * 3 * across + 3 * k + x % 3];
                to[x % 3 * 1024 + x / 3] = (uint8_t)(sum / texels);
            }
        }
    }
}

#undef INLINE
