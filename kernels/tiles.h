// The passes over tiles, for one instruction set: included once for each, in a namespace of its own, with TARGET the
// attribute that names the set. Arrays of fixed size in plain loops, which compilers turn into vector instructions.

#define INLINE TARGET __attribute__((always_inline)) static inline

typedef uint8_t v16 __attribute__((vector_size(16)));
typedef uint8_t v64 __attribute__((vector_size(64)));
typedef uint16_t __attribute__((may_alias)) pair;

template <class V> INLINE V load(const uint8_t *from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class V> INLINE void store(uint8_t *to, V value) { std::memcpy(to, &value, sizeof value); }

#ifdef BYTES_ACROSS
// Where the bytes of a vector come from, in two others that follow one another.
struct Mask {
    alignas(64) uint8_t from[64];
};

// Bytes 64 * part and following of RGB: red and green of two planes; blue is then put between them.
constexpr Mask red_green(int part) {
    Mask mask{};
    for (int i = 0; i < 64; ++i) mask.from[i] = (uint8_t)((64 * part + i) / 3 + 64 * ((64 * part + i) % 3 == 1));
    return mask;
}

constexpr Mask with_blue(int part) {
    Mask mask{};
    for (int i = 0; i < 64; ++i) mask.from[i] = (uint8_t)((64 * part + i) % 3 < 2 ? i : 64 + (64 * part + i) / 3);
    return mask;
}

// One channel of 32 texels of RGB, whose bytes 0 to 63 and 32 to 95 are given.
constexpr Mask channel_of(int channel) {
    Mask mask{};
    for (int i = 0; i < 32; ++i) mask.from[i] = (uint8_t)(3 * i + channel + (3 * i + channel < 64 ? 0 : 32));
    return mask;
}

INLINE v64 pick(v64 x, v64 y, const Mask &mask) { return __builtin_shuffle(x, y, load<v64>(mask.from)); }

// 64 texels of three planes to 192 bytes of RGB.
INLINE void interleave64(uint8_t *rgb, const uint8_t *r, const uint8_t *g, const uint8_t *b) {
    static constexpr Mask first[3] = {red_green(0), red_green(1), red_green(2)};
    static constexpr Mask second[3] = {with_blue(0), with_blue(1), with_blue(2)};
    const v64 x = load<v64>(r), y = load<v64>(g), z = load<v64>(b);
    for (int part = 0; part < 3; ++part) store(rgb + 64 * part, pick(pick(x, y, first[part]), z, second[part]));
}
#endif

// 16 texels of three planes to 48 bytes of RGB.
INLINE void interleave16(uint8_t *rgb, const uint8_t *r, const uint8_t *g, const uint8_t *b) {
    const v16 x = load<v16>(r), y = load<v16>(g), z = load<v16>(b);
    const v16 p = __builtin_shufflevector(x, y, 0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5);
    const v16 q = __builtin_shufflevector(x, y, 21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26);
    const v16 s = __builtin_shufflevector(x, y, 0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0);
    store(rgb, __builtin_shufflevector(p, z, 0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15));
    store(rgb + 16, __builtin_shufflevector(q, z, 0, 21, 2, 3, 22, 5, 6, 23, 8, 9, 24, 11, 12, 25, 14, 15));
    store(rgb + 32, __builtin_shufflevector(s, z, 26, 1, 2, 27, 4, 5, 28, 7, 8, 29, 10, 11, 30, 13, 14, 31));
}

// 16 texels of RGB to three planes.
INLINE void deinterleave16(const uint8_t *rgb, uint8_t *r, uint8_t *g, uint8_t *b) {
    const v16 x = load<v16>(rgb), y = load<v16>(rgb + 16), z = load<v16>(rgb + 32);
    const v16 p = __builtin_shufflevector(x, y, 0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 0, 0, 0, 0, 0);
    const v16 q = __builtin_shufflevector(x, y, 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 0, 0, 0, 0, 0);
    const v16 s = __builtin_shufflevector(x, y, 2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 0, 0, 0, 0, 0, 0);
    store(r, __builtin_shufflevector(p, z, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 20, 23, 26, 29));
    store(g, __builtin_shufflevector(q, z, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 21, 24, 27, 30));
    store(b, __builtin_shufflevector(s, z, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19, 22, 25, 28, 31));
}

// COUNT texels of three planes to RGB.
template <int COUNT> INLINE void interleave(uint8_t *rgb, const uint8_t *r, const uint8_t *g, const uint8_t *b) {
#ifdef BYTES_ACROSS
    constexpr int wide = COUNT / 64 * 64;
    for (int x = 0; x < wide; x += 64) interleave64(rgb + 3 * x, r + x, g + x, b + x);
#else
    constexpr int wide = 0;
#endif
    constexpr int most = COUNT / 16 * 16;
    for (int x = wide; x < most; x += 16) interleave16(rgb + 3 * x, r + x, g + x, b + x);
    for (int x = most; x < COUNT; ++x) rgb[3 * x] = r[x], rgb[3 * x + 1] = g[x], rgb[3 * x + 2] = b[x];
}

// COUNT texels of RGB, a multiple of 32, to three planes.
template <int COUNT> INLINE void deinterleave(const uint8_t *rgb, uint8_t *r, uint8_t *g, uint8_t *b) {
#ifdef BYTES_ACROSS
    static constexpr Mask channels[3] = {channel_of(0), channel_of(1), channel_of(2)};
    for (int x = 0; x < COUNT; x += 32) {
        const v64 low = load<v64>(rgb + 3 * x), high = load<v64>(rgb + 3 * x + 32);
        uint8_t *to[3] = {r + x, g + x, b + x};
        for (int c = 0; c < 3; ++c) {
            const v64 channel = pick(low, high, channels[c]);
            std::memcpy(to[c], &channel, 32);
        }
    }
#else
    for (int x = 0; x < COUNT; x += 16) deinterleave16(rgb + 3 * x, r + x, g + x, b + x);
#endif
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

INLINE uint8_t apart(uint8_t a, uint8_t b) { return (uint8_t)(a > b ? a - b : b - a); }

// The largest difference of each sample of `rows` rows: what could make a tile dirty shows here. False where all are
// equal, and `peaks` then stays as it is.
TARGET static bool scan(const uint8_t *a, int64_t a_stride, const uint8_t *b, int64_t b_stride, int rows, int64_t bytes,
                        uint8_t *__restrict peaks) {
    bool found = false;
    for (int y = 0; y < rows; ++y, a += a_stride, b += b_stride) {
        if (!std::memcmp(a, b, (size_t)bytes)) continue;
        if (!found) std::memset(peaks, 0, (size_t)bytes);
        found = true;
        for (int64_t x = 0; x < bytes; ++x) {
            const uint8_t delta = apart(a[x], b[x]);
            peaks[x] = peaks[x] > delta ? peaks[x] : delta;
        }
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

// Marks the tiles of a row that differ in one plane and are not marked yet.
TARGET static void compare_plane(const Texture &t, int p, const Plane &frame, int row, int mean, int largest, uint8_t *peaks,
                               uint8_t *dirty) {
    const Kept &kept = t.kept[p];
    const int first = row * kept.tile_height, rows = std::min(kept.tile_height, kept.height - first);
    const int bytes = kept.width * t.channels, step = kept.tile_width * t.channels;
    if (!scan(frame.data + first * frame.stride, frame.stride, kept.data + first * kept.stride, kept.stride, rows, bytes,
              peaks))
        return;
    for (int col = 0; col < t.cols; ++col) {
        uint8_t peak = 0;
        const int end = std::min(bytes, (col + 1) * step);
        for (int x = col * step; x < end; ++x) peak = peak > peaks[x] ? peak : peaks[x];
        if (!dirty[col] && peak > std::min(mean, largest)) dirty[col] = tile_differs(t, p, frame, row, col, mean, largest);
    }
}

// Marks the tiles of a row that differ: dirty [cols]. Where all of the row before did (`busy`), each is looked at by itself
// first, because what differs much shows in its first rows: most of a frame that differs everywhere is then not read.
TARGET static bool compare_row(const Texture &t, const Plane *frame, int row, int mean, int largest, bool busy,
                               uint8_t *peaks, uint8_t *dirty) {
    for (int col = 0; col < t.cols; ++col)
        dirty[col] = busy && tile_differs(t, 0, frame[0], row, col, mean, largest);
    for (int p = 0; p < t.planes && __builtin_memchr(dirty, 0, (size_t)t.cols); ++p)
        compare_plane(t, p, frame[p], row, mean, largest, peaks, dirty);
    return !__builtin_memchr(dirty, 0, (size_t)t.cols);
}

// Copies rows of BYTES samples.
template <int BYTES>
INLINE void copy_rows(uint8_t *to, int64_t to_stride, const uint8_t *from, int64_t from_stride, int rows) {
    for (int y = 0; y < rows; ++y, to += to_stride, from += from_stride) std::memcpy(to, from, BYTES);
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
template <int N, int SX, int SY> INLINE void convert(const Texture &t, int row, int col, uint8_t *rgb) {
    constexpr int W = 32 * N, CW = W / SX;
    const Kept &luma = t.kept[0], &cb = t.kept[1], &cr = t.kept[2];
    const int16_t *scale = t.scale, *offset = t.offset;
    alignas(64) int16_t u[CW], v[CW], red_part[W], green_part[W], blue_part[W], l[W];
    for (int c = 0; c < 32 / SY; ++c) {
        const uint8_t *us = cb.data + (row * (32 / SY) + c) * cb.stride + col * (32 / SX);
        const uint8_t *vs = cr.data + (row * (32 / SY) + c) * cr.stride + col * (32 / SX);
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
            const uint8_t *samples = luma.data + (row * 32 + y) * luma.stride + col * 32;
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
    uint8_t *to = t.levels[LEVEL] + row * side * stride + col * side * 3;
    if (W % 64 == 0) {
        for (int y = 0; y < side; ++y)
            interleave<W>(to + y * stride, rgb + y * W, rgb + (side + y) * W, rgb + (2 * side + y) * W);
    } else {
        alignas(64) uint8_t mixed[3 * side * W];
        interleave<side * W>(mixed, rgb, rgb + side * W, rgb + 2 * side * W);
        copy_rows<3 * W>(to, stride, mixed, 3 * W, side);
    }
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

template <int N> TARGET static void update_run(const Texture &t, const Plane *frame, int row, int col) {
    constexpr int W = 32 * N;
    alignas(64) uint8_t rgb[3 * 32 * W];
    for (int p = 0; p < t.planes; ++p) take<N>(t.kept[p], frame[p], t.channels, row, col);
    if (t.channels == 3) {  // the kept plane is level 0
        const uint8_t *from = t.kept[0].data + row * 32 * t.kept[0].stride + col * 96;
        for (int y = 0; y < 32; ++y, from += t.kept[0].stride)
            deinterleave<W>(from, rgb + y * W, rgb + (32 + y) * W, rgb + (64 + y) * W);
    } else if (t.planes == 1) {
        const uint8_t *from = t.kept[0].data + row * 32 * t.kept[0].stride + col * 32;
        for (int y = 0; y < 32; ++y, from += t.kept[0].stride)
            for (int c = 0; c < 3; ++c) std::memcpy(rgb + (32 * c + y) * W, from, W);
    } else {
        switch (32 / t.kept[1].tile_height * 8 + 32 / t.kept[1].tile_width) {
            case 8 + 1: convert<N, 1, 1>(t, row, col, rgb); break;
            case 8 + 2: convert<N, 2, 1>(t, row, col, rgb); break;
            case 8 + 4: convert<N, 4, 1>(t, row, col, rgb); break;
            case 16 + 1: convert<N, 1, 2>(t, row, col, rgb); break;
            case 16 + 2: convert<N, 2, 2>(t, row, col, rgb); break;
            case 16 + 4: convert<N, 4, 2>(t, row, col, rgb); break;
            case 32 + 1: convert<N, 1, 4>(t, row, col, rgb); break;
            case 32 + 2: convert<N, 2, 4>(t, row, col, rgb); break;
            default: convert<N, 4, 4>(t, row, col, rgb);
        }
    }
    if (t.channels == 1) put<N, 0>(t, row, col, rgb);
    put_levels<N>(t, row, col, rgb);
}

// Fetches what a run of N tiles reads and writes.
template <int N> INLINE void prefetch(const Texture &t, const Plane *frame, int row, int col) {
    for (int p = 0; p < t.planes; ++p) {
        const Kept &kept = t.kept[p];
        const int bytes = N * kept.tile_width * t.channels, left = col * kept.tile_width * t.channels;
        const int height = std::min(kept.tile_height, kept.height - row * kept.tile_height);
        for (int y = row * kept.tile_height; y < row * kept.tile_height + height; ++y)
            for (int x = left; x < left + bytes; x += 64) {
                __builtin_prefetch(frame[p].data + y * frame[p].stride + x);
                __builtin_prefetch(kept.data + y * kept.stride + x, 1);
            }
    }
    for (int level = 0; level < 2; ++level) {
        const int side = 32 >> level;
        const int64_t stride = (int64_t)t.cols * side * 3;
        uint8_t *to = t.levels[level] + row * side * stride + col * side * 3;
        for (int y = 0; y < side; ++y, to += stride)
            for (int x = 0; x < N * side * 3; x += 64) __builtin_prefetch(to + x, 1);
    }
}

// Brings the tiles dirty [cols] of a row up to date.
TARGET static void update_row(const Texture &t, const Plane *frame, int row, const uint8_t *dirty) {
    for (int col = 0; col < t.cols; ++col) {
        const void *next = __builtin_memchr(dirty + col, 1, (size_t)(t.cols - col));
        if (!next) return;
        col = (int)((const uint8_t *)next - dirty);
        if (col + 4 <= t.cols && dirty[col + 1] && dirty[col + 2] && dirty[col + 3]) {
            if (col + 8 <= t.cols) prefetch<4>(t, frame, row, col + 4);
            update_run<4>(t, frame, row, col);
            col += 3;
        } else {
            update_run<1>(t, frame, row, col);
        }
    }
}

// The texels [32 * down, 32 * ACROSS] of a region, averaged and apart by channel: [3, 32, 32].
template <int ACROSS>
TARGET static void gather_region(const uint8_t *level, int height, int width, int row, int col, int down, uint8_t *out) {
    constexpr int W = 32 * ACROSS;
    const int64_t stride = (int64_t)width * 3;
    const int left = col * W, there = std::min(W, width - left), count = down * ACROSS;
    alignas(64) uint8_t edge[3 * W], planes[3][W];
    uint16_t sums[3][32];
    for (int y = 0; y < 32; ++y) {
        std::memset(sums, 0, sizeof sums);
        for (int i = 0; i < down; ++i) {
            const uint8_t *from = level + std::min((row * 32 + y) * down + i, height - 1) * stride + left * 3;
            if (there < W) {
                std::memcpy(edge, from, (size_t)there * 3);
                for (int x = there * 3; x < 3 * W; ++x) edge[x] = edge[x - 3];
                from = edge;
            }
            if (ACROSS == 1 && down == 1) {
                deinterleave<32>(from, out + 32 * y, out + 32 * (32 + y), out + 32 * (64 + y));
                continue;
            }
            deinterleave<W>(from, planes[0], planes[1], planes[2]);
            for (int c = 0; c < 3; ++c)
                for (int x = 0; x < 32; ++x)
                    for (int k = 0; k < ACROSS; ++k) sums[c][x] = (uint16_t)(sums[c][x] + planes[c][ACROSS * x + k]);
        }
        if (count > 1)
            for (int c = 0; c < 3; ++c)
                for (int x = 0; x < 32; ++x) out[32 * (32 * c + y) + x] = (uint8_t)((sums[c][x] + count / 2) / count);
    }
}

TARGET static void gather(const Texture &t, const int64_t *regions, int64_t count, const int32_t *footprints, uint8_t *out) {
    for (int64_t i = 0; i < count; ++i, regions += 3, out += 3 * 32 * 32) {
        const int32_t *print = footprints + 3 * regions[0];
        const int side = 32 >> print[0], height = t.rows * side, width = t.cols * side;
        const int row = (int)regions[1], col = (int)regions[2];
        const uint8_t *level = t.levels[print[0]];
        switch (print[2]) {
            case 1: gather_region<1>(level, height, width, row, col, print[1], out); break;
            case 2: gather_region<2>(level, height, width, row, col, print[1], out); break;
            case 4: gather_region<4>(level, height, width, row, col, print[1], out); break;
            default: gather_region<8>(level, height, width, row, col, print[1], out);
        }
    }
}

#undef INLINE
