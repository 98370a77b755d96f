#version 450
// Logits of each tile's information and perspective (arr_coc/relevance/knowing.py) from its channels and those of its
// eight neighbours: one invocation a tile.

layout(local_size_x = 8, local_size_y = 8) in;

layout(std430, binding = 0) restrict buffer Maps { float maps[]; };
layout(std430, binding = 1) readonly restrict buffer Weights { float weights[]; };  // as `pack_weights` has them
layout(binding = 0) uniform usampler2D words;

const int CHANNELS = 13;
const int HIDDEN = 32;
const int BOTH = 64;  // hidden units of perspective, and of a learned part that is not here
const int NARROW = 16;
const int GATE = 0;
const int BIAS = GATE + CHANNELS + 1;
const int LOCAL = BIAS + BOTH;                // channels 0 to 11 and entropy, which perspective does not see
const int CLUSTERS = LOCAL + 13 * 9 * BOTH;
const int FEW = CLUSTERS + 9 * BOTH;
const int FEW_BIAS = FEW + HIDDEN * NARROW;
const int OUT = FEW_BIAS + NARROW;
const int INFORMATION = 14;
const int PERSPECTIVE = 15;

void main() {
    ivec2 size = textureSize(words, 5);
    ivec2 place = ivec2(gl_GlobalInvocationID.xy);
    if (any(greaterThanEqual(place, size))) {
        return;
    }
    int tiles = size.x * size.y, tile = place.y * size.x + place.x;
    float hidden[HIDDEN];
    for (int i = 0; i < HIDDEN; ++i) {
        hidden[i] = weights[BIAS + i];
    }
    float gate = weights[GATE + CHANNELS];
    for (int channel = 0; channel < CHANNELS; ++channel) {
        gate += maps[channel * tiles + tile] * weights[GATE + channel];
        int first = channel < CHANNELS - 1 ? LOCAL + channel * 9 * BOTH : CLUSTERS;
        for (int k = 0; k < 9; ++k) {
            ivec2 at = clamp(place + ivec2(k % 3, k / 3) - 1, ivec2(0), size - 1);
            float seen = maps[channel * tiles + at.y * size.x + at.x];
            for (int i = 0; i < HIDDEN; ++i) {
                hidden[i] += seen * weights[first + k * BOTH + i];
            }
        }
    }
    float logit = weights[OUT + NARROW];
    for (int few = 0; few < NARROW; ++few) {
        float sum = weights[FEW_BIAS + few];
        for (int i = 0; i < HIDDEN; ++i) {
            sum += max(hidden[i], 0.0) * weights[FEW + i * NARROW + few];
        }
        logit += max(sum, 0.0) * weights[OUT + few];
    }
    maps[INFORMATION * tiles + tile] = gate;
    maps[PERSPECTIVE * tiles + tile] = logit;
}
