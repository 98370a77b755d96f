#version 450
// The channels of `core13` of each tile but the places and the clusters, and its entropy, from levels 1, 2, 4 and 5: one
// workgroup a tile. They are those of arr_coc/relevance/channels.py, bit for bit, but for saliency (2e-6).

layout(local_size_x = 64) in;

layout(std430, binding = 0) writeonly restrict buffer Maps { float maps[]; };         // planes of rows · cols values
layout(std430, binding = 1) readonly restrict buffer Logs { uint count_logs[]; };      // n · log2(n) · 2^20, n up to 256
layout(binding = 0) uniform usampler2D words;

const int GROUP = 64;
const int HALO = 18;
const int NEAR = 2;  // tiles on each side of the near surround
const int FAR = 5;
const int ENTROPY = 13;

shared int luma[HALO * HALO];
shared uint halves[32];
shared int sums[15][GROUP];
shared int totals[15];

// A texel of one level; outside the level, the nearest one.
#define TEXEL(level, place) \
    bytes(texelFetch(words, clamp(place, ivec2(0), textureSize(words, level) - 1), level).r)

ivec3 bytes(uint word) { return ivec3(word & 255u, (word >> 8) & 255u, (word >> 16) & 255u); }

int luma_of(ivec3 colour) { return (colour.r * 9798 + colour.g * 19235 + colour.b * 3735 + (1 << 14)) >> 15; }

void edges_at(int column, int line, inout ivec3 edges) {
    int above = line * HALO + column, here = above + HALO, below = here + HALO;
    int gx = luma[above + 2] + 2 * luma[here + 2] + luma[below + 2] - luma[above] - 2 * luma[here] - luma[below];
    int gy = luma[below] + 2 * luma[below + 1] + luma[below + 2] - luma[above] - 2 * luma[above + 1] - luma[above + 2];
    edges += ivec3(gx, gy, int(roundEven(sqrt(float(gx * gx + gy * gy)))));
}

vec3 opponents(vec3 colour) {
    return vec3((colour.r + colour.g + colour.b) / 3.0, colour.r - colour.g, colour.b - 0.5 * (colour.r + colour.g)) /
           255.0;
}

void put(int first, int count, ivec3 value) {
    for (int k = 0; k < count; ++k) {
        sums[first + k][gl_LocalInvocationIndex] = value[k];
    }
}

void main() {
    int me = int(gl_LocalInvocationIndex);
    ivec2 place = ivec2(gl_WorkGroupID.xy);
    int tiles = int(gl_NumWorkGroups.x * gl_NumWorkGroups.y);
    int tile = place.y * int(gl_NumWorkGroups.x) + place.x;
    for (int i = me; i < HALO * HALO; i += GROUP) {
        luma[i] = luma_of(TEXEL(1, place * 16 + ivec2(i % HALO, i / HALO) - 1));
    }
    if (me < 32) {
        halves[me] = 0u;
    }
    barrier();

    ivec3 edges = ivec3(0);
    for (int i = me; i < 256; i += GROUP) {
        edges_at(i % 16, i / 16, edges);
        atomicAdd(halves[luma[(i / 16 + 1) * HALO + i % 16 + 1] >> 3], 1u);
    }
    ivec3 colour = TEXEL(2, place * 8 + ivec2(me % 8, me / 8));
    ivec3 near = ivec3(0), far = ivec3(0);
    for (int i = me; i < 121; i += GROUP) {
        ivec2 step = ivec2(i % 11, i / 11) - FAR;
        ivec3 around = TEXEL(5, place + step);
        far += around;
        near += max(abs(step.x), abs(step.y)) <= NEAR ? around : ivec3(0);
    }
    put(0, 3, edges);
    put(3, 3, colour);
    put(6, 3, colour * colour);
    put(9, 3, near);
    put(12, 3, far);
    barrier();
    if (me < 15) {
        int sum = 0;
        for (int i = 0; i < GROUP; ++i) {
            sum += sums[me][i];
        }
        totals[me] = sum;
    }
    barrier();
    if (me != 0) {
        return;
    }

    ivec3 middle = TEXEL(5, place);
    for (int k = 0; k < 3; ++k) {
        maps[k * tiles + tile] = float(middle[k]) / 255.0;
    }
    precise float across = float(totals[0]) / 256.0 / 1020.0;
    precise float down = float(totals[1]) / 256.0 / 1020.0;
    precise float magnitude = float(totals[2]) / 256.0 / float(1020.0LF * 1.4142135623730951LF);
    maps[5 * tiles + tile] = across;
    maps[6 * tiles + tile] = down;
    maps[7 * tiles + tile] = magnitude;

    vec3 high = vec3(-2.0), low = vec3(2.0);
    for (int i = 0; i < 4; ++i) {
        vec3 here = opponents(vec3(TEXEL(4, place * 2 + ivec2(i % 2, i / 2))));
        high = max(high, here);
        low = min(low, here);
    }
    vec3 close = opponents(vec3(totals[9], totals[10], totals[11]) / 25.0);
    vec3 wide = opponents(vec3(totals[12], totals[13], totals[14]) / 121.0);
    vec3 saliency = (max(high - close, close - low) + max(high - wide, wide - low)) / 2.0;
    saliency = clamp(saliency, 0.0, 1.0);
    for (int k = 0; k < 3; ++k) {
        maps[(8 + k) * tiles + tile] = saliency[k];
    }

    precise float variance = 0.0;
    for (int k = 0; k < 3; ++k) {
        precise float mean = float(totals[3 + k]) / 64.0;
        precise float square = mean * mean;  // rounded apart, not contracted
        variance += float(totals[6 + k]) / 64.0 - square;
    }
    maps[11 * tiles + tile] = max(variance * float(4.0LF / 3.0LF / (255.0LF * 255.0LF)), 0.0);

    // Of the bins, and those half a bin further, the smaller entropy counts. All sums are below 2^32.
    uint aligned = 0u, shifted = count_logs[halves[0]] + count_logs[halves[31]];
    for (int i = 0; i < 16; ++i) {
        aligned += count_logs[halves[2 * i] + halves[2 * i + 1]];
    }
    for (int i = 0; i < 15; ++i) {
        shifted += count_logs[halves[2 * i + 1] + halves[2 * i + 2]];
    }
    maps[ENTROPY * tiles + tile] = float(count_logs[256] - max(aligned, shifted)) / float(1 << 30);
}
