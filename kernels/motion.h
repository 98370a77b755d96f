// What is done with texels, for one instruction set: included once for each, in a namespace of its own, with TARGET the
// attribute that names the set. Results are those of arr_coc/video/tile_patches.py and tile_motion.py, bit for bit.

#define INLINE TARGET __attribute__((always_inline)) static inline

// Box means of 2×2 samples of `channels` each: height × width of them from `from`; rows are `stride` and width · channels
// bytes.
template <int channels>
INLINE void halve(const uint8_t *from, int64_t stride, int height, int width, uint8_t *to) {
    for (int y = 0; y < height; y++, from += 2 * stride)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < channels; c++, to++) {
                const uint8_t *at = from + 2 * x * channels + c;
                *to = uint8_t((at[0] + at[channels] + at[stride] + at[stride + channels] + 2) >> 2);
            }
}

template <int channels>
INLINE void read_luma(const uint8_t *from, int64_t stride, int height, int width, int factor, uint8_t *to, int64_t to_stride) {
    uint8_t half[TILE * TILE / 4 * channels], quarter[TILE * TILE / 16 * channels];
    uint8_t *spare = quarter, *made = half;
    for (; factor > 1; factor /= 2) {
        const int rows = height * factor / 2, cols = width * factor / 2;
        if (cols == TILE / 2) halve<channels>(from, stride, rows, TILE / 2, made);
        else if (cols == TILE / 4) halve<channels>(from, stride, rows, TILE / 4, made);
        else halve<channels>(from, stride, rows, cols, made);
        from = made, stride = int64_t(cols) * channels;
        std::swap(made, spare);
    }
    for (int y = 0; y < height; y++, from += stride, to += to_stride)
        for (int x = 0; x < width; x++)  // OpenCV's weights of red, green and blue
            to[x] = channels == 1 ? from[x] : uint8_t((from[3 * x] * 9798 + from[3 * x + 1] * 19235 + from[3 * x + 2] * 3735 + (1 << 14)) >> 15);
}

// Luma of height × width texels, each the mean of factor × factor samples.
TARGET static void read(const uint8_t *from, int64_t stride, int channels, int height, int width, int factor, uint8_t *to, int64_t to_stride) {
    if (channels == 1) read_luma<1>(from, stride, height, width, factor, to, to_stride);
    else read_luma<3>(from, stride, height, width, factor, to, to_stride);
}

// Texels (x, y) to (x + count, y) of a picture, beyond whose edge the edge goes on.
INLINE void take_row(const Picture &p, int64_t y, int64_t x, int count, uint8_t *to) {
    const uint8_t *row = p.data + std::clamp<int64_t>(y, 0, p.height - 1) * p.stride;
    if (x >= 0 && x + count <= p.width) {
        std::memcpy(to, row + x, size_t(count));
        return;
    }
    for (int i = 0; i < count; i++) to[i] = row[std::clamp<int64_t>(x + i, 0, p.width - 1)];
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

INLINE int64_t fixed(double place) { return int64_t(std::floor(place * ONE + 0.5)); }

// The same, of a picture that moved by (dy, dx) texels.
TARGET static void shifted(const Picture &p, int y, int x, double dy, double dx, int side, int step, uint8_t *to) {
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

// height × width texels from (y, x) on, every step-th row of them, from where `s` says that they were.
TARGET static void moved(const Picture &p, const Sources &s, int y, int x, int height, int width, int step, uint8_t *to, int64_t stride) {
    for (int r = step / 2; r < height; r += step, to += stride)
        for (int i = 0; i < width; i++) {
            const int64_t top = fixed(s.down[0] * (y + r) + (s.down[1] * (x + i) + s.down[2]));
            const int64_t left = fixed(s.across[0] * (y + r) + (s.across[1] * (x + i) + s.across[2]));
            const int fy = int(top & (ONE - 1)), fx = int(left & (ONE - 1));
            const int64_t row = top >> BITS, col = left >> BITS;
            const uint8_t *above = p.data + std::clamp<int64_t>(row, 0, p.height - 1) * p.stride;
            const uint8_t *below = p.data + std::clamp<int64_t>(row + 1, 0, p.height - 1) * p.stride;
            const int64_t a = std::clamp<int64_t>(col, 0, p.width - 1), b = std::clamp<int64_t>(col + 1, 0, p.width - 1);
            const int one = above[a] * (ONE - fx) + above[b] * fx, other = below[a] * (ONE - fx) + below[b] * fx;
            to[i] = uint8_t((one * (ONE - fy) + other * fy + ONE * ONE / 2) >> (2 * BITS));
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

// Sums of products over a tile's texels: of Sobel's slopes down and across, and of slopes and what changed from `before`
// to `after`.
TARGET static void products(const Picture &p, int y, int x, int side, int step, const uint8_t *before, const uint8_t *after, Products &sums) {
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

#undef INLINE
