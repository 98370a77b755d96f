// Drives kernels/tiles.cpp where Python cannot: on another processor, under an emulator. Reads from stdin the texture
// as arr_coc/texture/store/native.py describes it, limits int32 [2], two frames, and regions; writes what differs, all levels, and
// the regions' pixels.
#include "../../kernels/tiles.cpp"

#include <cstdio>

template <class T> static std::vector<T> read(size_t count) {
    std::vector<T> values(count);
    if (std::fread(values.data(), sizeof(T), count, stdin) != count) std::exit(2);
    return values;
}

static void write(const std::vector<uint8_t> &bytes) { std::fwrite(bytes.data(), 1, bytes.size(), stdout); }

int main() {
    Texture t = read<Texture>(1)[0];
    const auto limits = read<int32_t>(2);
    const size_t tiles = (size_t)t.rows * t.cols;
    std::vector<uint8_t> levels[6], kept[3], samples[2][3];
    for (int level = 0; level < t.level_count; ++level) {
        levels[level].resize(tiles * (3072 >> 2 * level));
        t.levels[level] = levels[level].data();
    }
    Plane frames[2][3];
    for (int p = 0; p < t.planes; ++p) {
        kept[p].resize(tiles * t.kept[p].tile_height * t.kept[p].tile_width);
        t.kept[p].data = t.channels == 3 ? t.levels[0] : kept[p].data();
    }
    for (int f = 0; f < 2; ++f)
        for (int p = 0; p < t.planes; ++p) {
            const int64_t stride = (int64_t)t.kept[p].width * t.channels;
            samples[f][p] = read<uint8_t>((size_t)(t.kept[p].height * stride));
            frames[f][p] = {samples[f][p].data(), stride};
        }
    const auto count = read<int64_t>(1)[0];
    const auto regions = read<int64_t>((size_t)count * 3);
    const auto footprints = read<int32_t>((size_t)read<int64_t>(1)[0] * 3);
    const std::vector<uint8_t> all(tiles, 1);
    std::vector<uint8_t> dirty = all, rest((size_t)t.rows), pixels((size_t)count * 3072);
    std::vector<Hash> known(tiles);
    t.known = known.data(), t.rest = rest.data();
    tiles_update(&t, frames[0], dirty.data());
    tiles_compare(&t, frames[0], limits[0], limits[1], dirty.data());  // by samples, from here on by hashes
    tiles_compare(&t, frames[1], limits[0], limits[1], dirty.data());
    tiles_update(&t, frames[1], dirty.data());
    tiles_finest(&t, all.data());
    tiles_gather(&t, regions.data(), count, footprints.data(), pixels.data());
    write(dirty);
    for (int level = 0; level < t.level_count; ++level) write(levels[level]);
    write(pixels);
}
