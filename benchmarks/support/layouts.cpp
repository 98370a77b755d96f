// Steps of a texture's work in three memory layouts, timed in processor time of the thread. Tiles are those of the
// product's kernel: made in a core's own cache as red, green and blue, then stored.
#include "../../kernels/tiles.cpp"

#include <ctime>

#undef TARGET
#define TARGET
namespace native {
#include "../../kernels/tiles.h"
}

enum Layout { PLANAR, RGB, RGBA };

static int rows, cols;
static std::vector<uint8_t> levels[6], tokens, packed, luma;

template <int COUNT> static void to_rgba(uint8_t *to, const uint8_t *r, const uint8_t *g, const uint8_t *b) {
    for (int x = 0; x < COUNT; ++x) {
        const uint32_t texel = r[x] | (uint32_t)g[x] << 8 | (uint32_t)b[x] << 16 | 255u << 24;
        std::memcpy(to + 4 * x, &texel, 4);
    }
}

// A row of COUNT texels at (y, x) of a level `wide` texels wide, `high` high.
template <Layout L, int COUNT>
static void put_row(uint8_t *level, int high, int wide, int y, int x, const uint8_t *r, const uint8_t *g, const uint8_t *b) {
    const int64_t at = (int64_t)y * wide + x, plane = (int64_t)high * wide;
    if (L == RGB) native::interleave<COUNT>(level + 3 * at, r, g, b);
    else if (L == RGBA) to_rgba<COUNT>(level + 4 * at, r, g, b);
    else std::memcpy(level + at, r, COUNT), std::memcpy(level + plane + at, g, COUNT), std::memcpy(level + 2 * plane + at, b, COUNT);
}

template <Layout L, int COUNT>
static void get_row(const uint8_t *level, int high, int wide, int y, int x, uint8_t *r, uint8_t *g, uint8_t *b) {
    const int64_t at = (int64_t)y * wide + x, plane = (int64_t)high * wide;
    if (L == RGB) native::deinterleave<COUNT>(level + 3 * at, r, g, b);
    else if (L == RGBA)
        for (int i = 0; i < COUNT; ++i) r[i] = level[4 * (at + i)], g[i] = level[4 * (at + i) + 1], b[i] = level[4 * (at + i) + 2];
    else std::memcpy(r, level + at, COUNT), std::memcpy(g, level + plane + at, COUNT), std::memcpy(b, level + 2 * plane + at, COUNT);
}

template <Layout L, int LEVEL> static void put_tile(int row, int col, const uint8_t *tile) {
    constexpr int side = 32 >> LEVEL;
    for (int y = 0; y < side; ++y)
        put_row<L, side>(levels[LEVEL].data(), rows * side, cols * side, row * side + y, col * side, tile + y * side,
                         tile + (side + y) * side, tile + (2 * side + y) * side);
}

template <Layout L> static void update(const int32_t *tiles, int count) {
    alignas(64) static uint8_t zero[3072], one[768], two[192], three[48], four[12], five[3];
    for (int i = 0; i < count; ++i) {
        const int row = tiles[2 * i], col = tiles[2 * i + 1];
        for (int x = 0; x < 3072; ++x) zero[x] = (uint8_t)(x * 7 + row * 31 + col * 17);
        native::halve<32>(zero, one, 96), native::halve<16>(one, two, 48), native::halve<8>(two, three, 24);
        native::halve<4>(three, four, 12), native::halve<2>(four, five, 6);
        put_tile<L, 0>(row, col, zero), put_tile<L, 1>(row, col, one), put_tile<L, 2>(row, col, two);
        put_tile<L, 3>(row, col, three), put_tile<L, 4>(row, col, four), put_tile<L, 5>(row, col, five);
    }
}

// Level 0 of tiles as tokens: [count, 3, 32, 32].
template <Layout L> static void gather(const int32_t *tiles, int count) {
    for (int i = 0; i < count; ++i)
        for (int y = 0; y < 32; ++y) {
            uint8_t *to = tokens.data() + i * 3072 + 32 * y;
            get_row<L, 32>(levels[0].data(), rows * 32, cols * 32, tiles[2 * i] * 32 + y, tiles[2 * i + 1] * 32, to, to + 1024,
                           to + 2048);
        }
}

// Luma of level 1 of tiles, which most channels are computed from.
template <Layout L> static void channels(const int32_t *tiles, int count) {
    uint8_t r[32], g[32], b[32];
    for (int i = 0; i < count; ++i)
        for (int y = 0; y < 16; ++y) {
            const int at_y = tiles[2 * i] * 16 + y, at_x = std::min(tiles[2 * i + 1] * 16, cols * 16 - 32);
            get_row<L, 32>(levels[1].data(), rows * 16, cols * 16, at_y, at_x, r, g, b);
            for (int x = 0; x < 32; ++x)
                luma[at_y * cols * 16 + at_x + x] = (uint8_t)((77 * r[x] + 150 * g[x] + 29 * b[x] + 128) >> 8);
        }
}

// Level 0 of tiles one after another, as RGBA for OpenGL or RGB for CUDA.
template <Layout L, int BYTES> static void upload(const int32_t *tiles, int count) {
    uint8_t r[32], g[32], b[32];
    for (int i = 0; i < count; ++i)
        for (int y = 0; y < 32; ++y) {
            const int at_y = tiles[2 * i] * 32 + y, at_x = tiles[2 * i + 1] * 32;
            uint8_t *to = packed.data() + (i * 32 + y) * 32 * BYTES;
            if ((L == RGB && BYTES == 3) || (L == RGBA && BYTES == 4)) {
                std::memcpy(to, levels[0].data() + ((int64_t)at_y * cols * 32 + at_x) * BYTES, 32 * BYTES);
                continue;
            }
            get_row<L, 32>(levels[0].data(), rows * 32, cols * 32, at_y, at_x, r, g, b);
            if (BYTES == 3) native::interleave<32>(to, r, g, b);
            else to_rgba<32>(to, r, g, b);
        }
}

extern "C" {

// Makes room for a texture of rows×cols tiles in any layout.
void layouts_open(int32_t tile_rows, int32_t tile_cols) {
    rows = tile_rows, cols = tile_cols;
    for (int level = 0; level < 6; ++level) levels[level].assign((size_t)rows * cols * (4096 >> 2 * level) + 64, 0);
    tokens.assign((size_t)rows * cols * 3072, 0), packed.assign((size_t)rows * cols * 4096, 0);
    luma.assign((size_t)rows * cols * 256, 0);
}

// Does one step (update, gather, channels, gl, cuda) in one layout (planar, rgb, rgba) for tiles [count, 2] (row, col);
// returns the nanoseconds that it took.
int64_t layouts_step(int32_t layout, int32_t step, const int32_t *tiles, int32_t count) {
    using Work = void (*)(const int32_t *, int);
    static const Work work[3][5] = {
        {update<PLANAR>, gather<PLANAR>, channels<PLANAR>, upload<PLANAR, 4>, upload<PLANAR, 3>},
        {update<RGB>, gather<RGB>, channels<RGB>, upload<RGB, 4>, upload<RGB, 3>},
        {update<RGBA>, gather<RGBA>, channels<RGBA>, upload<RGBA, 4>, upload<RGBA, 3>},
    };
    timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    work[layout][step](tiles, count);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return (to.tv_sec - from.tv_sec) * 1000000000ll + to.tv_nsec - from.tv_nsec;
}

// The outcome of the last steps: tokens, packed tiles, luma.
const uint8_t *layouts_tokens() { return tokens.data(); }
const uint8_t *layouts_packed() { return packed.data(); }
const uint8_t *layouts_luma() { return luma.data(); }
}
