#version 450
// The tiles of most relevance, then those most neglected, of equals the first (arr_coc/allocation/strategies.py, `topk`):
// index and relevance of each, by index. One workgroup; each invocation has a span of tiles one after another.

layout(local_size_x = 256) in;

layout(std430, binding = 0) restrict buffer Maps { float maps[]; };
layout(std430, binding = 1) writeonly restrict buffer Chosen { uint chosen[]; };
layout(std430, binding = 2) readonly restrict buffer Choice {
    int relevance;  // plane
    int best;       // how many by relevance
    int neglected;  // how many by staleness
    int sticky;     // tiles that were shown, by the plane SHOWN, count for more
    float dull, stickiness;
};
layout(binding = 0) uniform usampler2D words;

const int GROUP = 256;
const int SHOWN = 40;
const int STALENESS = 41;
const int TAKEN = 42;

shared uint counts[256];
shared uint before[GROUP];
shared uint prefix;
shared int missing;

// A number whose order is that of the worths.
uint key_of(float worth) {
    uint bits = floatBitsToUint(worth + 0.0);
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

uint key_at(int turn, int tiles, int tile) {
    if (turn == 1) {
        return key_of(maps[STALENESS * tiles + tile]);
    }
    float worth = maps[relevance * tiles + tile];
    if (sticky != 0) {
        worth += dull;
        worth = maps[SHOWN * tiles + tile] != 0.0 ? worth * stickiness : worth;
    }
    return key_of(worth);
}

// Sum over the invocations before this one.
uint sum_before(int me, uint mine) {
    before[me] = mine;
    for (int step = 1; step < GROUP; step *= 2) {
        barrier();
        uint added = me >= step ? before[me - step] : 0u;
        barrier();
        before[me] += added;
    }
    barrier();
    uint sum = before[me] - mine;
    barrier();
    return sum;
}

// Take the `count` tiles of the largest keys that are not taken. The least key among them is found by its bytes.
void take(int turn, int count, int tiles, int first, int end, int me) {
    if (me == 0) {
        prefix = 0u;
        missing = count;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        counts[me] = 0u;
        barrier();
        uint known = shift == 24 ? 0u : 0xffffffffu << (shift + 8);
        for (int tile = first; tile < end; ++tile) {
            uint key = key_at(turn, tiles, tile);
            if (maps[TAKEN * tiles + tile] == 0.0 && (key & known) == prefix) {
                atomicAdd(counts[(key >> shift) & 255u], 1u);
            }
        }
        barrier();
        if (me == 0) {
            int value = 255;
            while (value > 0 && int(counts[value]) < missing) {
                missing -= int(counts[value]);
                --value;
            }
            prefix |= uint(value) << shift;
        }
        barrier();
    }
    uint equal = 0u;
    for (int tile = first; tile < end; ++tile) {
        equal += maps[TAKEN * tiles + tile] == 0.0 && key_at(turn, tiles, tile) == prefix ? 1u : 0u;
    }
    uint place = sum_before(me, equal);
    for (int tile = first; tile < end; ++tile) {
        uint key = key_at(turn, tiles, tile);
        if (maps[TAKEN * tiles + tile] != 0.0 || key < prefix) {
            continue;
        }
        if (key > prefix || int(place++) < missing) {
            maps[TAKEN * tiles + tile] = 1.0;
        }
    }
    barrier();
}

void main() {
    int me = int(gl_LocalInvocationIndex);
    ivec2 size = textureSize(words, 5);
    int tiles = size.x * size.y, span = (tiles + GROUP - 1) / GROUP;
    int first = min(me * span, tiles), end = min(first + span, tiles);
    for (int tile = first; tile < end; ++tile) {
        maps[TAKEN * tiles + tile] = 0.0;
    }
    if (best > 0) {
        take(0, best, tiles, first, end, me);
    }
    if (neglected > 0) {
        take(1, neglected, tiles, first, end, me);
    }
    uint mine = 0u;
    for (int tile = first; tile < end; ++tile) {
        mine += uint(maps[TAKEN * tiles + tile]);
    }
    uint place = sum_before(me, mine);
    for (int tile = first; tile < end; ++tile) {
        if (maps[TAKEN * tiles + tile] != 0.0) {
            chosen[2u * place] = uint(tile);
            chosen[2u * place + 1u] = floatBitsToUint(maps[relevance * tiles + tile]);
            ++place;
        }
    }
}
