// What is done with texels, for one instruction set: included once for each, in a namespace of its own, with TARGET the
// attribute that names the set. Results are those of arr_coc/video/tile_patches.py and tile_motion.py, bit for bit.

#define INLINE TARGET __attribute__((always_inline)) static inline

// Means of 2×2 samples of `channels` each, of two rows: `width` of them.
template <int channels> INLINE void halve(const uint8_t *above, const uint8_t *below, int width, uint8_t *to) {
    int x = 0;
    for (; channels == 1 && x + 16 <= width; x += 16) {  // two bytes are one number here, whichever comes first
        uint16_t one[16], other[16];
        std::memcpy(one, above + 2 * x, sizeof one);
        std::memcpy(other, below + 2 * x, sizeof other);
        for (int i = 0; i < 16; i++)
            to[x + i] = uint8_t(((one[i] & 255) + (one[i] >> 8) + (other[i] & 255) + (other[i] >> 8) + 2) >> 2);
    }
    for (; x < width; x++)
        for (int c = 0; c < channels; c++) {
            const int at = 2 * x * channels + c;
            to[x * channels + c] = uint8_t((above[at] + above[at + channels] + below[at] + below[at + channels] + 2) >> 2);
        }
}

template <int channels>
INLINE void read_luma(const uint8_t *from, int64_t stride, int height, int width, int factor, uint8_t *to, int64_t to_stride) {
    uint8_t half[4][AT_ONCE * 4 * channels], quarter[2][AT_ONCE * 2 * channels], eighth[AT_ONCE * channels];
    for (int y = 0; y < height; y++, from += factor * stride, to += to_stride) {
        const uint8_t *row = from;
        if (factor > 1) row = half[0];
        for (int i = 0; i < factor / 2; i++) halve<channels>(from + 2 * i * stride, from + (2 * i + 1) * stride, width * factor / 2, half[i]);
        if (factor > 2) row = quarter[0];
        for (int i = 0; i < factor / 4; i++) halve<channels>(half[2 * i], half[2 * i + 1], width * factor / 4, quarter[i]);
        if (factor > 4) halve<channels>(quarter[0], quarter[1], width, eighth), row = eighth;
        if (channels == 1) std::memcpy(to, row, size_t(width));
        else
            for (int x = 0; x < width; x++)  // OpenCV's weights of red, green and blue
                to[x] = uint8_t((row[3 * x] * 9798 + row[3 * x + 1] * 19235 + row[3 * x + 2] * 3735 + (1 << 14)) >> 15);
    }
}

// Luma of height × width texels, each the mean of factor × factor samples.
TARGET static void read(const uint8_t *from, int64_t stride, int channels, int height, int width, int factor, uint8_t *to, int64_t to_stride) {
    for (int x = 0; x < width; x += AT_ONCE) {
        const int count = std::min(width - x, AT_ONCE);
        if (channels == 1) read_luma<1>(from + x * factor, stride, height, count, factor, to + x, to_stride);
        else read_luma<3>(from + x * factor * 3, stride, height, count, factor, to + x, to_stride);
    }
}

// Texels (x, y) to (x + count, y) of a picture, beyond whose edge the edge goes on.
INLINE void take_row(const Picture &p, int64_t y, int64_t x, int count, uint8_t *to) {
    const uint8_t *row = p.data + std::clamp<int64_t>(y, 0, p.height - 1) * p.stride;
    if (x >= 0 && x + count <= p.width) {
        std::memcpy(to, row + x, size_t(count));
        return;
    }
    const int64_t first = std::max<int64_t>(-x, 0), inside = std::min<int64_t>(p.width - x, count);
    if (first < inside) std::memcpy(to + first, row + x + first, size_t(inside - first));
    for (int64_t i = 0; i < std::min<int64_t>(first, count); i++) to[i] = row[0];
    for (int64_t i = std::max<int64_t>(inside, 0); i < count; i++) to[i] = row[p.width - 1];
}

// A box of a picture under the kernel (1 2 1) / 4, down and across.
TARGET static void blur(const Picture &p, int top, int left, int bottom, int right, uint8_t *to, int64_t stride) {
    for (; left < right; left += AT_ONCE) {
        const int count = std::min(right - left, AT_ONCE);
        uint8_t rows[3][AT_ONCE + 2];
        uint16_t sums[AT_ONCE + 2];
        for (int y = top; y < bottom; y++) {
            for (int i = 0; i < 3; i++)
                if (i == 2 || y == top) take_row(p, y + i - 1, left - 1, count + 2, rows[(y + i) % 3]);
            const uint8_t *above = rows[y % 3], *here = rows[(y + 1) % 3], *below = rows[(y + 2) % 3];
            for (int x = 0; x < count + 2; x++) sums[x] = uint16_t(above[x] + 2 * here[x] + below[x]);
            uint8_t *out = to + y * stride + left;
            for (int x = 0; x < count; x++) out[x] = uint8_t((sums[x] + 2 * sums[x + 1] + sums[x + 2] + 8) >> 4);
        }
    }
}

// Every step-th row of `side` rows and columns of texels from (y, x) on, as they are.
TARGET static void still(const Picture &p, int y, int x, int side, int step, uint8_t *to) {
    for (int r = step / 2; r < side; r += step, to += side) take_row(p, y + r, x, side, to);
}

INLINE int64_t fixed(double place) { return int64_t(std::rint(place * ONE)); }

template <int side>
INLINE void shifted_tile(const Picture &p, int y, int x, double dy, double dx, int step, uint8_t *to) {
    const int64_t left = fixed(x - dx);
    const int fx = int(left & (ONE - 1));
    uint8_t above[TILE + 1], below[TILE + 1];
    for (int r = step / 2; r < side; r += step, to += side) {
        const int64_t top = fixed(y + r - dy);
        const int fy = int(top & (ONE - 1));
        take_row(p, top >> BITS, left >> BITS, side + 1, above);
        take_row(p, (top >> BITS) + 1, left >> BITS, side + 1, below);
        for (int i = 0; i < side; i++) {
            const int one = above[i] * (ONE - fx) + above[i + 1] * fx, other = below[i] * (ONE - fx) + below[i + 1] * fx;
            to[i] = uint8_t((one * (ONE - fy) + other * fy + ONE * ONE / 2) >> (2 * BITS));
        }
    }
}

// The same, of a picture that moved by (dy, dx) texels.
TARGET static void shifted(const Picture &p, int y, int x, double dy, double dx, int side, int step, uint8_t *to) {
    if (side == 4) shifted_tile<4>(p, y, x, dy, dx, step, to);
    else if (side == 8) shifted_tile<8>(p, y, x, dy, dx, step, to);
    else if (side == 16) shifted_tile<16>(p, y, x, dy, dx, step, to);
    else shifted_tile<32>(p, y, x, dy, dx, step, to);
}

// Places of LANES texels, in fractions of a texel; those so far off that all show the edge are as good as nearer ones.
INLINE void places(const double *factors, const double *y, const double *x, int32_t *to) {
    for (int i = 0; i < LANES; i++) {
        double place = std::rint((factors[0] * y[i] + (factors[1] * x[i] + factors[2])) * ONE);
        place = place < -FAR ? -FAR : place;
        to[i] = int32_t(place > FAR ? FAR : place);
    }
}

// LANES texels (y, x), read at their origins by `s`.
INLINE void moved_texels(const Picture &p, const Sources &s, const double *y, const double *x, uint8_t *to) {
    int32_t top[LANES], left[LANES], above[LANES], below[LANES], first[LANES], next[LANES];
    places(s.down, y, x, top);
    places(s.across, y, x, left);
    const int32_t bottom = p.height - 1, right = p.width - 1, stride = int32_t(p.stride);
    for (int i = 0; i < LANES; i++) {
        const int32_t row = top[i] >> BITS, col = left[i] >> BITS;
        above[i] = (row < 0 ? 0 : row > bottom ? bottom : row) * stride;
        below[i] = (row < -1 ? 0 : row >= bottom ? bottom : row + 1) * stride;
        first[i] = col < 0 ? 0 : col > right ? right : col;
        next[i] = col < -1 ? 0 : col >= right ? right : col + 1;
    }
    uint8_t a[LANES], b[LANES], c[LANES], d[LANES];
    for (int i = 0; i < LANES; i++) {
        a[i] = p.data[above[i] + first[i]], b[i] = p.data[above[i] + next[i]];
        c[i] = p.data[below[i] + first[i]], d[i] = p.data[below[i] + next[i]];
    }
    for (int i = 0; i < LANES; i++) {
        const int32_t fy = top[i] & (ONE - 1), fx = left[i] & (ONE - 1);
        const int32_t one = a[i] * (ONE - fx) + b[i] * fx, other = c[i] * (ONE - fx) + d[i] * fx;
        to[i] = uint8_t((one * (ONE - fy) + other * fy + ONE * ONE / 2) >> (2 * BITS));
    }
}

// height × width texels from (y, x) on, every step-th row of them, next to each other, read at their origins by `s`.
TARGET static void moved(const Picture &p, const Sources &s, int y, int x, int height, int width, int step, uint8_t *to) {
    double rows[LANES], cols[LANES];
    uint8_t made[LANES];
    const int64_t count = int64_t(height) / step * width;
    int row = y + step / 2, col = 0;
    for (int64_t at = 0; at < count; at += LANES) {
        for (int i = 0; i < LANES; i++) {
            rows[i] = row, cols[i] = x + col;
            if (++col == width) col = 0, row += step;
        }
        moved_texels(p, s, rows, cols, made);
        std::memcpy(to + at, made, size_t(std::min<int64_t>(count - at, LANES)));
    }
}

// Sum of absolute differences; `count` is a multiple of 16, here and below.
TARGET static int64_t apart(const uint8_t *one, const uint8_t *other, int count) {
    int32_t sum = 0;
    for (int i = 0; i < count; i += 16)
        for (int j = i; j < i + 16; j++) sum += std::abs(one[j] - other[j]);
    return sum;
}

// count² times the variance.
TARGET static int64_t spread(const uint8_t *values, int count) {
    int32_t sum = 0, squares = 0;
    for (int i = 0; i < count; i += 16)
        for (int j = i; j < i + 16; j++) sum += values[j], squares += values[j] * values[j];
    return int64_t(count) * squares - int64_t(sum) * sum;
}

template <int side>
INLINE void products_of_tile(const Picture &p, int y, int x, int step, const uint8_t *before, const uint8_t *after, Products &sums) {
    int32_t yy = 0, xx = 0, xy = 0, yc = 0, xc = 0;
    uint8_t rows[3][TILE + 2];
    for (int r = step / 2; r < side; r += step, before += side, after += side) {
        for (int i = 0; i < 3; i++) take_row(p, y + r + i - 1, x - 1, side + 2, rows[i]);
        for (int i = 0; i < side; i++) {
            const int32_t change = after[i] - before[i];
            const int32_t dx = rows[0][i + 2] - rows[0][i] + 2 * (rows[1][i + 2] - rows[1][i]) + rows[2][i + 2] - rows[2][i];
            const int32_t dy = rows[2][i] - rows[0][i] + 2 * (rows[2][i + 1] - rows[0][i + 1]) + rows[2][i + 2] - rows[0][i + 2];
            yy += dy * dy, xx += dx * dx, xy += dy * dx, yc += dy * change, xc += dx * change;
        }
    }
    sums = {yy, xx, xy, yc, xc};
}

// Sums of products over a tile's texels: of Sobel's slopes down and across, and of slopes and what changed from `before`
// to `after`.
TARGET static void products(const Picture &p, int y, int x, int side, int step, const uint8_t *before, const uint8_t *after, Products &sums) {
    if (side == 4) products_of_tile<4>(p, y, x, step, before, after, sums);
    else if (side == 8) products_of_tile<8>(p, y, x, step, before, after, sums);
    else if (side == 16) products_of_tile<16>(p, y, x, step, before, after, sums);
    else products_of_tile<32>(p, y, x, step, before, after, sums);
}

#undef INLINE
