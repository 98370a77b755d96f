// Motion of the tiles of a frame: what arr_coc/video/tile_motion.py describes, with its results. A plain C interface,
// called with ctypes (arr_coc/video/compiled_motion.py), which has checked sizes. Names are those of the reference.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

// Pixels of a tile's side, most texels that a tile is compared by; fractions of a texel, in bits; columns that are read,
// and texels that are moved, at once.
constexpr int TILE = 32, COMPARED_MAX = 512, BITS = 7, ONE = 1 << BITS, AT_ONCE = 256, LANES = 32;
constexpr double FAR = 1 << 30;

struct Picture {
    const uint8_t *data;
    int64_t stride;
    int32_t height, width;
};

// Factors of (row, col, 1) of a texel that give its earlier row and column.
struct Sources {
    double down[3], across[3];
};

struct Products {
    int32_t yy, xx, xy, yc, xc;
};

#if defined(__x86_64__)
#define BASELINE v2
#define BASELINE_NAME "x86-64-v2"
#define TARGET __attribute__((target("arch=x86-64-v3")))
namespace v3 {
#include "motion.h"
}
#undef TARGET
#define TARGET __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
namespace v4 {
#include "motion.h"
}
#undef TARGET
#define TARGET __attribute__((target("arch=x86-64-v2")))
#else
#define BASELINE plain
#define BASELINE_NAME "baseline"
#define TARGET
#endif
namespace BASELINE {
#include "motion.h"
}

// The functions of one instruction set.
struct Variant {
    const char *name;
    decltype(&BASELINE::read) read;
    decltype(&BASELINE::blur) blur;
    decltype(&BASELINE::still) still;
    decltype(&BASELINE::shifted) shifted;
    decltype(&BASELINE::moved) moved;
    decltype(&BASELINE::apart) apart;
    decltype(&BASELINE::spread) spread;
    decltype(&BASELINE::products) products;
};

#define VARIANT(name, set) {name, set::read, set::blur, set::still, set::shifted, set::moved, set::apart, set::spread, set::products}

static Variant choose() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("x86-64-v4")) return VARIANT("x86-64-v4", v4);
    if (__builtin_cpu_supports("x86-64-v3")) return VARIANT("x86-64-v3", v3);
    if (!__builtin_cpu_supports("x86-64-v2")) return {};
#endif
    return VARIANT(BASELINE_NAME, BASELINE);
}

static const Variant chosen = choose();

// Constants of arr_coc/video/{tile_motion,tile_patches,camera_motion,motion_search}.py and arr_coc/types.py.
struct Rules {
    double least_motion_px, least_confidence, coded_share, shift_share, guess_leaves, same_px, better, explains, filled;
    double structure, fits, misfits, explained, explained_of_change, noise, rest_texels, least_slope;
    double start_scale_px, end_scale_px, scale_step, inlier_px, inlier_share, least_support, affine_spread_tiles, ridge;
    double least_bend_texels, whole_share;
    int32_t least_together, coded_frames[3], coded_samples, least_tiles, affine_tiles, tiles_used, reach_tiles, boxes_max;
};

// A frame's size in tiles, texels of a tile's side, pixels of a texel's; samples' channels; texels that lie wholly in
// the frame. `old` and `now` are the small pictures uint8 [rows · texels, cols · texels] before and after. What the
// caller is asked for is about `box` (top, left, bottom, right), or `wanted` uint8 [rows, cols]; its answer is `given`,
// motion down and across. `motion` is the result: dy_px, dx_px, confidence; `moving`: how many tiles move;
// `has_camera`: whether one camera's motion explains all of the frame. All maps are float32 [rows, cols].
struct Frame {
    int32_t rows, cols, texels, texel_px, channels, height, width;
    int32_t box[4], moving, has_camera;
    uint8_t *old, *now, *wanted;
    float *given[2], *motion[3];
};

enum Wants { NOTHING, VECTORS, SHIFT, FLOW };

namespace {

struct Box {
    int top, left, bottom, right;
    int area() const { return (bottom - top) * (right - left); }
    bool overlaps(const Box &b) const { return top < b.bottom && b.top < bottom && left < b.right && b.left < right; }
};

Box around(const Box &a, const Box &b) {
    return {std::min(a.top, b.top), std::min(a.left, b.left), std::max(a.bottom, b.bottom), std::max(a.right, b.right)};
}

// Motion (dy_px, dx_px) of tiles by factors of (row, col, 1); `support` is the share of confidence that it explains.
struct Camera {
    double matrix[2][3], support;

    // Of a tile.
    float over(int way, int row, int col) const {
        const float a = float(matrix[way][0]), b = float(matrix[way][1]), c = float(matrix[way][2]);
        return a * float(row) + (b * float(col) + c);
    }
};

Camera shift_by(double dy_px, double dx_px) { return {{{0, 0, dy_px}, {0, 0, dx_px}}, 1}; }

// Solves a x = b for two right sides, of `size` equations; false if they are singular.
bool solve(int size, double a[3][3], double b[3][2]) {
    for (int i = 0; i < size; i++) {
        int pivot = i;
        for (int r = i + 1; r < size; r++)
            if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
        if (a[pivot][i] == 0) return false;
        std::swap(a[i], a[pivot]), std::swap(b[i], b[pivot]);
        for (int r = i + 1; r < size; r++) {
            const double factor = a[r][i] / a[i][i];
            for (int c = i; c < size; c++) a[r][c] -= factor * a[i][c];
            for (int c = 0; c < 2; c++) b[r][c] -= factor * b[i][c];
        }
    }
    for (int i = size - 1; i >= 0; i--)
        for (int c = 0; c < 2; c++) {
            for (int r = i + 1; r < size; r++) b[i][c] -= a[i][r] * b[r][c];
            b[i][c] /= a[i][i];
        }
    return true;
}

double median(std::vector<double> &values) {
    const size_t half = values.size() / 2;
    std::nth_element(values.begin(), values.begin() + half, values.end());
    if (values.size() % 2) return values[half];
    return (values[half] + *std::max_element(values.begin(), values.begin() + half)) / 2;
}

struct Point {
    double place[3], moved[2], trust;
    double off(const double fitted[3][2], int size) const {
        double squares = 0;
        for (int c = 0; c < 2; c++) {
            double rest = moved[c];
            for (int i = 0; i < size; i++) rest -= place[3 - size + i] * fitted[i][c];
            squares += rest * rest;
        }
        return squares;
    }
};

// The origin of one tile by its best motion, and what is known of the tile.
struct Tile {
    int index, row, col;
    bool weak;
    float content, structure, dy, dx, confidence, sure;
    int64_t still, apart, near, tried;
};

}  // namespace

struct Motion {
    Frame &frame;
    const Rules rules;
    const int side, step, count;  // texels of a tile's side; of rows, which are compared; compared texels
    std::vector<uint8_t> halved[2], cover, dirty, seen, best, tried;
    std::vector<Box> boxes, touched;
    std::vector<Tile> tiles;
    std::vector<int> stack;
    std::vector<float> past[3], found[3];
    std::vector<double> sorted;
    std::vector<Point> points;
    Camera camera, guess, last_camera;
    bool past_moves = false, past_camera = false, has_guess = false;
    size_t part = 0;
    enum { START, CODED, SHIFTED, FLOWED } phase = START;

    Motion(Frame *shared, const Rules &r)
        : frame(*shared), rules(r), side(frame.texels), step(side > 4 ? 2 : 1), count(side * side / step) {
        for (auto &small : halved) small.assign(size_t(frame.height) * frame.width, 0);
        for (int i = 0; i < 3; i++) past[i].assign(size_t(all()), 0), found[i].assign(size_t(all()), 0);
        cover.assign(size_t(all()), 0);
    }

    int all() const { return frame.rows * frame.cols; }
    Picture picture(const uint8_t *data) const {
        return {data, int64_t(frame.cols) * side, frame.rows * side, frame.cols * side};
    }
    bool is_whole() const { return boxes[part].area() == all(); }

    // ---- the small pictures ----

    // Reads boxes of tiles into a small picture, blurs them and what is next to them, and pads it to whole tiles.
    void read(const uint8_t *plane, int64_t stride, uint8_t *half, uint8_t *small, const std::vector<Box> &parts) {
        const int height = frame.height, width = frame.width;
        if (!height || !width) return;
        for (const Box &box : parts) {
            const int y = box.top * side, x = box.left * side;
            const int tall = std::min(box.bottom * side, height) - y, wide = std::min(box.right * side, width) - x;
            const uint8_t *from = plane + int64_t(box.top) * TILE * stride + int64_t(box.left) * TILE * frame.channels;
            if (tall > 0 && wide > 0)
                chosen.read(from, stride, frame.channels, tall, wide, frame.texel_px, half + int64_t(y) * width + x, width);
        }
        const Picture from{half, width, height, width};
        for (const Box &box : parts)
            chosen.blur(from, std::max(box.top * side - 1, 0), std::max(box.left * side - 1, 0), std::min(box.bottom * side + 1, height), std::min(box.right * side + 1, width), small, int64_t(frame.cols) * side);
        pad(small);
    }

    void pad(uint8_t *small) const {
        const int64_t stride = int64_t(frame.cols) * side;
        for (int y = 0; y < frame.height; y++) std::memset(small + y * stride + frame.width, small[y * stride + frame.width - 1], size_t(stride - frame.width));
        for (int y = frame.height; y < frame.rows * side; y++) std::memcpy(small + y * stride, small + (frame.height - 1) * stride, size_t(stride));
    }

    // Brings what was read last from one pair of small pictures to the other.
    void copy(int from, int to) {
        uint8_t *const small[2] = {frame.old, frame.now};
        const int height = frame.height, width = frame.width;
        if (!height || !width) return;
        for (const Box &box : touched)
            for (int y = std::max(box.top * side - 1, 0); y < std::min(box.bottom * side + 1, height); y++) {
                const int left = std::max(box.left * side - 1, 0), right = std::min(box.right * side + 1, width);
                if (right <= left) continue;
                std::memcpy(&halved[to][size_t(y) * width + left], &halved[from][size_t(y) * width + left], size_t(right - left));
                const int64_t at = int64_t(y) * frame.cols * side + left;
                std::memcpy(small[to] + at, small[from] + at, size_t(right - left));
            }
        pad(small[to]);
        touched.clear();
    }

    // ---- parts of the frame ----

    // Bounds of tiles that are covered and together, the first of which is `first`; they are covered no more.
    Box together(int first, int &size) {
        Box box{frame.rows, frame.cols, 0, 0};
        size = 0;
        stack.assign(1, first);
        cover[first] = 0;
        while (!stack.empty()) {
            const int row = stack.back() / frame.cols, col = stack.back() % frame.cols;
            stack.pop_back();
            size++;
            box = around(box, {row, col, row + 1, col + 1});
            for (int y = std::max(row - 1, 0); y <= std::min(row + 1, frame.rows - 1); y++)
                for (int x = std::max(col - 1, 0); x <= std::min(col + 1, frame.cols - 1); x++)
                    if (int next = y * frame.cols + x; cover[next]) cover[next] = 0, stack.push_back(next);
        }
        return box;
    }

    void find_boxes() {
        const Box whole{0, 0, frame.rows, frame.cols};
        boxes.assign(1, whole);
        if (std::count(dirty.begin(), dirty.end(), 1) > rules.whole_share * all()) return;
        boxes.clear();
        const int reach = rules.reach_tiles;
        std::fill(cover.begin(), cover.end(), 0);
        for (int row = 0; row < frame.rows; row++)
            for (int col = 0; col < frame.cols; col++)
                if (dirty[row * frame.cols + col])
                    for (int y = std::max(row - reach, 0); y <= std::min(row + reach, frame.rows - 1); y++)
                        std::memset(&cover[y * frame.cols + std::max(col - reach, 0)], 1, size_t(std::min(col + reach, frame.cols - 1) - std::max(col - reach, 0) + 1));
        int size;
        for (int tile = 0; tile < all(); tile++)
            if (cover[tile]) boxes.push_back(together(tile, size));
        if (int(boxes.size()) > rules.boxes_max) {
            for (size_t i = 1; i < boxes.size(); i++) boxes[0] = around(boxes[0], boxes[i]);
            boxes.resize(1);
        }
        for (size_t one = 0; one < boxes.size(); one++)
            for (size_t other = one + 1; other < boxes.size(); other++)
                if (boxes[one].overlaps(boxes[other])) {
                    boxes[one] = around(boxes[one], boxes[other]);
                    boxes.erase(boxes.begin() + int64_t(other));
                    one = size_t(-1);
                    break;
                }
        int covered = 0;
        for (const Box &box : boxes) covered += box.area();
        if (covered > rules.whole_share * all()) boxes.assign(1, whole);
    }

    void begin(const uint8_t *held, int64_t held_stride, const uint8_t *plane, int64_t stride, const uint8_t *changed) {
        if (held) {
            const std::vector<Box> whole{{0, 0, frame.rows, frame.cols}};
            read(held, held_stride, halved[0].data(), frame.old, whole);
            past_moves = past_camera = false;
            touched = whole;
        }
        copy(0, 1);  // the frame before, though it was estimated, may not have been kept
        dirty.assign(changed, changed + all());
        find_boxes();
        read(plane, stride, halved[1].data(), frame.now, boxes);
        touched = boxes;
        for (int i = 0; i < all(); i++) frame.motion[0][i] = frame.motion[1][i] = 0, frame.motion[2][i] = dirty[i] ? 0 : 1;
        frame.has_camera = 0;
        part = 0, phase = START;
    }

    void keep() {
        copy(1, 0);
        past_moves = frame.moving > 0, past_camera = frame.has_camera, last_camera = camera;
        for (int i = 0; i < 3; i++) past[i].swap(found[i]);
    }

    // ---- tiles compared ----

    float left(int64_t apart) const { return float(apart) * float(1.0 / count); }
    float noise() const { return float(rules.noise); }

    bool explains(const Tile &tile, int64_t apart) const {
        const float change = float(rules.explained_of_change) * (left(tile.still) - noise());
        return left(apart) <= std::max(float(rules.explained) * tile.content, change) + noise();
    }

    float fit(const Tile &tile, int64_t apart) const {
        const float unlike = std::max(left(apart) - noise(), 0.0f) / tile.content;
        return std::clamp((float(rules.misfits) - unlike) * float(1 / (rules.misfits - rules.fits)), 0.0f, 1.0f);
    }

    // The smaller eigenvalue of the structure tensor, as a share.
    float structure(const Products &sums) const {
        float yy, xx, xy;
        slopes(sums, yy, xx, xy);
        const float half = (yy - xx) * 0.5f;
        const float least = std::max((yy + xx) * 0.5f - std::sqrt(half * half + xy * xy), 0.0f);
        return least / (least + float(rules.structure * rules.structure));
    }

    void slopes(const Products &sums, float &yy, float &xx, float &xy) const {
        const float mean = float(1.0 / count);
        yy = float(sums.yy) * mean * (1 / 64.0f), xx = float(sums.xx) * mean * (1 / 64.0f), xy = float(sums.xy) * mean * (1 / 64.0f);
    }

    // One step of registration.
    void rest(const Products &sums, float &dy, float &dx) const {
        const float mean = float(1.0 / count), scale = float(frame.texel_px / 8.0), slope = float(rules.least_slope);
        const float by = float(sums.yc) * mean * scale, bx = float(sums.xc) * mean * scale;
        float yy, xx, xy;
        slopes(sums, yy, xx, xy);
        const float most = float(rules.rest_texels * frame.texel_px);
        const float determinant = yy * xx - xy * xy + slope * (yy + xx) + float(rules.least_slope * rules.least_slope);
        dy = std::clamp((xy * bx - (xx + slope) * by) / determinant, -most, most);
        dx = std::clamp((xy * by - (yy + slope) * bx) / determinant, -most, most);
    }

    Sources sources(const Camera &of) const {
        const double px = TILE / double(side);
        const double a = of.matrix[0][0] / px, b = of.matrix[0][1] / px, ty = of.matrix[0][2] / px;
        const double c = of.matrix[1][0] / px, d = of.matrix[1][1] / px, tx = of.matrix[1][2] / px;
        const double bend = std::max(std::abs(a) + std::abs(c), std::abs(b) + std::abs(d));
        if (bend * std::max(frame.rows, frame.cols) < 2 * rules.least_bend_texels) {
            const double row = (frame.rows - 1) / 2.0, col = (frame.cols - 1) / 2.0;
            return {{1, 0, -(a * row + b * col + ty)}, {0, 1, -(c * row + d * col + tx)}};
        }
        const double offset = 0.5 / side - 0.5;
        return {{1 - a / side, -b / side, -(ty + (a + b) * offset)}, {-c / side, 1 - d / side, -(tx + (c + d) * offset)}};
    }

    // Texels of the old picture from (y, x) on, moved to their present places; rows are `stride` bytes.
    void with_sources(const Sources &s, int y, int x, int rows, uint8_t *to) const {
        const Picture old = picture(frame.old);
        const bool turned = s.down[1] != 0 || s.across[0] != 0 || s.down[0] != 1 || s.across[1] != 1;
        if (turned) chosen.moved(old, s, y, x, side, side, rows, to);
        else chosen.shifted(old, y, x, -s.down[2], -s.across[2], side, rows, to);
    }

    int64_t apart(const Tile &tile, const uint8_t *texels) const {
        return chosen.apart(&seen[(&tile - tiles.data()) * count], texels, count);
    }

    int64_t each(const Tile &tile, float dy_px, float dx_px, uint8_t *texels) const {
        chosen.shifted(picture(frame.old), tile.row * side, tile.col * side, double(dy_px) / frame.texel_px, double(dx_px) / frame.texel_px, side, step, texels);
        return apart(tile, texels);
    }

    void take_if_better(Tile &tile, int64_t left_apart, float dy, float dx, const uint8_t *texels) {
        if (left_apart >= tile.apart) return;
        tile.apart = left_apart, tile.dy = dy, tile.dx = dx;
        std::memcpy(&best[(&tile - tiles.data()) * count], texels, size_t(count));
    }

    bool is_open(const Tile &tile) const { return !explains(tile, tile.apart); }

    bool more(double share) const {
        return std::count_if(tiles.begin(), tiles.end(), [&](const Tile &t) { return is_open(t); }) > share * double(tiles.size());
    }

    // ---- guesses ----

    void begin_part() {
        const Box &box = boxes[part];
        tiles.clear();
        for (int row = box.top; row < box.bottom; row++)
            for (int col = box.left; col < box.right; col++)
                if (dirty[row * frame.cols + col]) {
                    Tile tile{};
                    tile.index = row * frame.cols + col, tile.row = row, tile.col = col;
                    tiles.push_back(tile);
                }
        for (auto *texels : {&seen, &best, &tried}) texels->resize(tiles.size() * count);
        for (Tile &tile : tiles) {
            uint8_t *after = &seen[(&tile - tiles.data()) * count], *before = &best[(&tile - tiles.data()) * count];
            chosen.still(picture(frame.now), tile.row * side, tile.col * side, side, step, after);
            chosen.still(picture(frame.old), tile.row * side, tile.col * side, side, step, before);
            tile.content = std::max(std::sqrt(float(chosen.spread(after, count))) * float(1.0 / count), noise());
            tile.still = tile.apart = apart(tile, before);
        }
        has_guess = false;
        Camera likely;
        if (expected(likely)) guessed(likely);
    }

    bool expected(Camera &likely) {
        if (is_whole()) {
            likely = last_camera;
            return past_camera;
        }
        if (!past_moves) return false;
        const Box &box = boxes[part];
        double way[2];
        for (int axis = 0; axis < 2; axis++) {
            sorted.clear();
            for (int row = box.top; row < box.bottom; row++)
                for (int col = box.left; col < box.right; col++) {
                    const int tile = row * frame.cols + col;
                    const float most = std::max(std::abs(past[0][tile]), std::abs(past[1][tile]));
                    if (most >= float(rules.least_motion_px) && past[2][tile] >= float(rules.least_confidence)) sorted.push_back(past[axis][tile]);
                }
            if (sorted.empty()) return false;
            std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
            way[axis] = sorted[sorted.size() / 2];
        }
        likely = shift_by(way[0], way[1]);
        return true;
    }

    void guessed(const Camera &likely) {
        const Sources s = sources(likely);
        int64_t sum = 0, still = 0, near = 0;
        for (Tile &tile : tiles) {
            uint8_t *texels = &tried[(&tile - tiles.data()) * count];
            with_sources(s, tile.row * side, tile.col * side, step, texels);
            tile.tried = apart(tile, texels);
            sum += tile.tried, still += tile.still, near += tile.near;
        }
        if (double(sum) >= (has_guess ? double(near) : rules.guess_leaves * double(still))) return;
        for (Tile &tile : tiles) {
            tile.near = tile.tried;
            take_if_better(tile, tile.near, likely.over(0, tile.row, tile.col), likely.over(1, tile.row, tile.col), &tried[(&tile - tiles.data()) * count]);
        }
        guess = likely, has_guess = true;
    }

    void as_coded() {
        stack.clear();
        for (const Tile &tile : tiles) {
            const float dy = frame.given[0][tile.index], dx = frame.given[1][tile.index];
            if (is_open(tile) && std::isfinite(dy) && std::max(std::abs(dy), std::abs(dx)) >= float(rules.least_motion_px))
                stack.push_back(int(&tile - tiles.data()));
        }
        if (stack.empty()) return;
        const size_t every = (stack.size() + rules.coded_samples - 1) / rules.coded_samples;
        uint8_t texels[COMPARED_MAX];
        int64_t least = -1;
        float scale = 1;
        for (const int frames : rules.coded_frames) {
            const float part_of = float(1.0 / frames);
            int64_t sum = 0;
            for (size_t i = 0; i < stack.size(); i += every) {
                const Tile &tile = tiles[stack[i]];
                sum += each(tile, frame.given[0][tile.index] * part_of, frame.given[1][tile.index] * part_of, texels);
            }
            if (least < 0 || sum < least) least = sum, scale = part_of;
        }
        for (const int i : stack) {
            Tile &tile = tiles[i];
            const float dy = frame.given[0][tile.index] * scale, dx = frame.given[1][tile.index] * scale;
            take_if_better(tile, each(tile, dy, dx, texels), dy, dx, texels);
        }
    }

    // Whether flow is wanted; if so, fills `wanted`, and `given` with the motion that it begins from.
    bool wants_flow() {
        std::fill(cover.begin(), cover.end(), 0);
        for (const Tile &tile : tiles) cover[tile.index] = is_open(tile);
        std::copy(cover.begin(), cover.end(), frame.wanted);
        bool any = false;
        for (const Tile &tile : tiles) {
            const int first = tile.index;
            if (has_guess && cover[first]) {
                int size;
                const Box box = together(first, size);
                if (size < rules.least_together)
                    for (int row = box.top; row < box.bottom; row++)
                        std::memset(frame.wanted + row * frame.cols + box.left, 0, size_t(box.right - box.left));
            }
            if (frame.wanted[first] && has_guess && is_whole() && !was_in_view(tile)) frame.wanted[first] = 0;
            any = any || frame.wanted[first];
        }
        if (!any) return false;
        if (!has_guess) guess = shift_by(0, 0);
        for (int tile = 0; tile < all(); tile++)
            for (int way = 0; way < 2; way++) frame.given[way][tile] = guess.over(way, tile / frame.cols, tile % frame.cols);
        return true;
    }

    // Whether a tile was in view, but for a pixel, before it moved as guessed.
    bool was_in_view(const Tile &tile) const {
        const float top = float(tile.row * TILE) - guess.over(0, tile.row, tile.col), bottom = float((frame.rows - 1) * TILE) + 1;
        const float left_px = float(tile.col * TILE) - guess.over(1, tile.row, tile.col), right = float((frame.cols - 1) * TILE) + 1;
        return top >= -1 && top <= bottom && left_px >= -1 && left_px <= right;
    }

    void flowed() {
        uint8_t texels[COMPARED_MAX];
        for (Tile &tile : tiles)
            if (frame.wanted[tile.index]) {
                const float dy = frame.given[0][tile.index], dx = frame.given[1][tile.index];
                take_if_better(tile, each(tile, dy, dx, texels), dy, dx, texels);
            }
    }

    // ---- the motion of a part ----

    void finish() {
        bool weak = false;
        for (Tile &tile : tiles) {
            const size_t at = size_t(&tile - tiles.data()) * count;
            Products sums;
            chosen.products(picture(frame.now), tile.row * side, tile.col * side, side, step, &best[at], &seen[at], sums);
            float dy, dx;
            rest(sums, dy, dx);
            tile.dy += dy, tile.dx += dx;
            tile.structure = structure(sums);
            tile.confidence = tile.structure * fit(tile, tile.apart);
            tile.sure = tile.confidence >= float(rules.least_confidence) ? tile.confidence : 0;
            tile.weak = tile.sure == 0;
            weak = weak || tile.weak;
        }
        bool found = false;
        if (is_whole() || weak) {
            if (is_guess_shared()) found = true, with_camera(true);
            else if (fit_camera()) found = true, with_camera(false);
        }
        for (Tile &tile : tiles) {
            if (tile.weak) tile.dy = tile.dx = 0;
            frame.motion[0][tile.index] = tile.dy, frame.motion[1][tile.index] = tile.dx;
            frame.motion[2][tile.index] = tile.confidence;
        }
        frame.has_camera = is_whole() && found;
    }

    // Whether tiles that are sure agree on the guess; it is the camera's motion then.
    bool is_guess_shared() {
        if (!has_guess) return false;
        double agreeing = 0, all_of = 0;
        for (const Tile &tile : tiles) {
            const float dy = tile.dy - guess.over(0, tile.row, tile.col), dx = tile.dx - guess.over(1, tile.row, tile.col);
            all_of += tile.sure;
            if (std::abs(dy) <= float(rules.same_px) && std::abs(dx) <= float(rules.same_px)) agreeing += tile.sure;
        }
        camera = guess, camera.support = agreeing / std::max(all_of, 1e-6);
        return camera.support >= rules.least_support;
    }

    bool fit_camera() {
        points.clear();
        const int certain = int(std::count_if(tiles.begin(), tiles.end(), [](const Tile &t) { return t.sure > 0; }));
        if (certain < rules.least_tiles) return false;
        const int every = (certain + rules.tiles_used - 1) / rules.tiles_used;
        double centre[2] = {0, 0}, variance[2] = {0, 0};
        int at = 0;
        for (const Tile &tile : tiles)
            if (tile.sure > 0 && at++ % every == 0) points.push_back({{double(tile.row), double(tile.col), 1}, {tile.dy, tile.dx}, tile.sure});
        for (int i = 0; i < 2; i++) {
            for (const Point &point : points) centre[i] += point.place[i];
            centre[i] /= double(points.size());
            for (Point &point : points) point.place[i] -= centre[i], variance[i] += point.place[i] * point.place[i];
        }
        const double spread = std::sqrt(std::min(variance[0], variance[1]) / double(points.size()));
        const int size = int(points.size()) >= rules.affine_tiles && spread >= rules.affine_spread_tiles ? 3 : 1;
        double fitted[3][2] = {};
        for (int c = 0; c < 2; c++) {
            sorted.clear();
            for (const Point &point : points) sorted.push_back(point.moved[c]);
            fitted[size - 1][c] = median(sorted);
        }
        for (double scale = rules.start_scale_px; scale >= rules.end_scale_px; scale *= rules.scale_step)
            for (int again = 0; again < 2; again++) refit(scale, size, fitted);
        double agreeing = 0, all_of = 0;
        int agree = 0;
        for (const Point &point : points) {
            const double way = std::sqrt(point.moved[0] * point.moved[0] + point.moved[1] * point.moved[1]);
            const double limit = rules.inlier_px + rules.inlier_share * way;
            all_of += point.trust;
            if (point.off(fitted, size) <= limit * limit) agree++, agreeing += point.trust;
        }
        camera.support = agreeing / all_of;
        if (agree < rules.least_tiles || !(camera.support >= rules.least_support)) return false;
        for (int c = 0; c < 2; c++) {
            const double a = size == 3 ? fitted[0][c] : 0, b = size == 3 ? fitted[1][c] : 0;
            camera.matrix[c][0] = a, camera.matrix[c][1] = b;
            camera.matrix[c][2] = fitted[size - 1][c] - (a * centre[0] + b * centre[1]);
        }
        return true;
    }

    // One step of iteratively reweighted least squares.
    void refit(double scale, int size, double fitted[3][2]) {
        double a[3][3] = {}, b[3][2] = {};
        for (int i = 0; i < size; i++) a[i][i] = rules.ridge;
        for (const Point &point : points) {
            const double off = 1 + point.off(fitted, size) / (scale * scale), weight = point.trust / (off * off);
            const double *place = point.place + 3 - size;
            for (int i = 0; i < size; i++) {
                for (int j = 0; j < size; j++) a[i][j] += weight * place[i] * place[j];
                for (int c = 0; c < 2; c++) b[i][c] += weight * place[i] * point.moved[c];
            }
        }
        if (solve(size, a, b)) std::memcpy(fitted, b, sizeof b);
    }

    // Tiles whose motion says little, or leaves more than the camera's does, move with the camera.
    void with_camera(bool is_guess) {
        const Sources s = sources(camera);
        uint8_t texels[COMPARED_MAX];
        for (Tile &tile : tiles) {
            int64_t after = tile.near;
            if (!is_guess) {
                with_sources(s, tile.row * side, tile.col * side, step, texels);
                after = apart(tile, texels);
            }
            const bool fills = (tile.weak && left(after) <= float(rules.explains) * left(tile.apart) + noise()) || left(after) < float(rules.better) * left(tile.apart);
            if (!fills) continue;
            tile.dy = camera.over(0, tile.row, tile.col), tile.dx = camera.over(1, tile.row, tile.col);
            tile.confidence = std::max(trust(tile, after), tile.confidence);
            tile.weak = false;
        }
        if (!is_whole()) return;
        for (int index = 0; index < all(); index++)
            if (!dirty[index]) plain_with_camera(s, index);
    }

    float trust(const Tile &tile, int64_t after) const {
        return float(camera.support) * fit(tile, after) * std::max(tile.structure, float(rules.filled));
    }

    // A tile that did not change goes with a moving camera if it looks like its neighbours.
    void plain_with_camera(const Sources &s, int index) {
        uint8_t before[COMPARED_MAX], after[COMPARED_MAX];
        Tile tile{};
        tile.row = index / frame.cols, tile.col = index % frame.cols;
        const int y = tile.row * side, x = tile.col * side;
        chosen.still(picture(frame.now), y, x, side, step, after);
        with_sources(s, y, x, step, before);
        const int64_t is_left = chosen.apart(after, before, count);
        if (left(is_left) > noise()) return;
        Products sums;
        chosen.products(picture(frame.now), y, x, side, step, before, after, sums);
        tile.structure = structure(sums);
        if (!(tile.structure < float(rules.least_confidence))) return;
        tile.content = std::max(std::sqrt(float(chosen.spread(after, count))) * float(1.0 / count), noise());
        const float dy = camera.over(0, tile.row, tile.col), dx = camera.over(1, tile.row, tile.col);
        frame.motion[0][index] = dy, frame.motion[1][index] = dx;
        if (std::max(std::abs(dy), std::abs(dx)) >= float(rules.least_motion_px)) frame.motion[2][index] = trust(tile, is_left);
    }

    // Goes on until all is done or the caller is wanted, who comes back with `answered`: whether there was an answer.
    Wants next(bool answered) {
        for (;;) switch (phase) {
            case START:
                if (part == boxes.size()) {
                    frame.moving = 0;
                    for (int i = 0; i < all(); i++)
                        frame.moving += std::max(std::abs(frame.motion[0][i]), std::abs(frame.motion[1][i])) >= float(rules.least_motion_px);
                    for (int i = 0; i < 3; i++) std::copy(frame.motion[i], frame.motion[i] + all(), found[i].begin());
                    return NOTHING;
                }
                begin_part();
                answered = false;
                phase = CODED;
                std::memcpy(frame.box, &boxes[part], sizeof frame.box);
                if (more(rules.coded_share)) return VECTORS;
                break;
            case CODED:
                if (answered) as_coded();
                answered = false;
                phase = SHIFTED;
                if (more(rules.shift_share)) return SHIFT;
                break;
            case SHIFTED:
                if (answered) guessed(shift_by(frame.given[0][0], frame.given[1][0]));
                answered = false;
                phase = FLOWED;
                if (wants_flow()) return FLOW;
                break;
            case FLOWED:
                if (answered) flowed();
                finish();
                part++;
                phase = START;
        }
    }
};

extern "C" {

// Number of this interface; the caller refuses another one.
int32_t motion_version() { return 2; }

// Name of the instruction set; null if this processor has none of those compiled.
const char *motion_set() { return chosen.name; }

// An estimator for frames of one size, which reads and writes `frame`.
Motion *motion_open(Frame *frame, const Rules *rules) { return new Motion(frame, *rules); }

void motion_close(Motion *motion) { delete motion; }

// Begins with a frame, of which `dirty` uint8 [rows, cols] tiles differ. `held`, the plane in the texture, is null if
// the frame before was kept.
void motion_begin(Motion *motion, const uint8_t *held, int64_t held_stride, const uint8_t *plane, int64_t stride, const uint8_t *dirty) {
    motion->begin(held, held_stride, plane, stride, dirty);
}

// Returns the next request to the caller, 0 once all is done; see `Wants`.
int32_t motion_next(Motion *motion, int32_t answered) { return motion->next(answered != 0); }

// A box of texels [rows, cols] of the old picture, moved by the guess.
void motion_moved(Motion *motion, int32_t top, int32_t left, int32_t rows, int32_t cols, uint8_t *texels) {
    chosen.moved(motion->picture(motion->frame.old), motion->sources(motion->guess), top, left, rows, cols, 1, texels);
}

// The texture holds the frame that was estimated.
void motion_keep(Motion *motion) { motion->keep(); }
}
