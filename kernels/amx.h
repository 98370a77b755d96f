// Tiles of AMX: whether the process may use them, and their registers.

// Rows and columns of a tile whose elements have 32 bits.
constexpr int SIDE = 16;

// Asks Linux for the tiles' registers, which a process does not have at first. Returns whether it has them, and products of numbers
// of which bit `product` of CPUID's leaf 7 tells.
static bool tiles_available(int product) {
#if defined(__linux__)
    constexpr int TILE = 24;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> TILE & d >> product & 1)) return false;
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

// Eight tiles of 16 rows of 64 bytes while it lives. Released, they cost a change of threads nothing, and others find none of theirs.
struct Tiles {
    __attribute__((target("amx-tile"))) Tiles() {
        struct {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } shapes;
        std::fill_n(shapes.bytes, 8, uint16_t(64));
        std::fill_n(shapes.rows, 8, uint8_t(SIDE));
        __asm__ volatile("" : : "m"(shapes));  // GCC does not know that what follows reads all of it
        _tile_loadconfig(&shapes);
    }
    __attribute__((target("amx-tile"))) ~Tiles() { _tile_release(); }
};
