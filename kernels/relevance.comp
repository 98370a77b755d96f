#version 450
// Relevance of each tile from the logits of its scores and what answers taught, blended with the frame before: one
// workgroup for the whole map (arr_coc/relevance/balancing.py, arr_coc/allocation/temporal.py).

layout(local_size_x = 256) in;

layout(std430, binding = 0) restrict buffer Maps { float maps[]; };
layout(std430, binding = 1) readonly restrict buffer Weights { float weights[]; };
layout(std430, binding = 2) readonly restrict buffer Frame {
    int balancer;  // place of its weights
    int width;
    int scored;    // the planes hold scores already, not their logits
    int fresh;     // no frame came before
    int moved;     // tiles come from where the planes ORIGIN say
    int taught;    // there is a prior
    int weighed;   // relevance is multiplied by the plane FACTOR
    int past;      // plane of the past's first map
    int next;      // plane of what becomes the past
    float kept;    // the past's share of a tile that looks the same
    float renewal, band, settled;
    float weak, odds_limit, alone, faint, looked_away, looked_at, sure, tiny;
    float recall_attention, recall_similarity;
};
layout(binding = 0) uniform usampler2D words;

const int GROUP = 256;
const int ENTROPY = 13;
const int INFORMATION = 14;
const int PERSPECTIVE = 15;
const int PARTICIPATION = 16;
const int RELEVANCE = 17;
const int FACTOR = 18;
const int PRIOR = 19;
const int ORIGIN = 22;
const int LOOKS[6] = int[](0, 1, 2, 5, 6, 7);
const int BLENDED = 0;
const int OUTPUT = 1;
const int LOOKED = 2;

shared float parts[8][GROUP];
shared float shares[3];
shared float doubt;

// e to the x, within 2e-7: the power of two is put into the exponent, the rest is a polynomial (Cephes, expf). Drivers'
// own are less exact, llvmpipe's by a hundred times.
float power(float x) {
    x = clamp(x, -87.0, 87.0);
    float whole = roundEven(x * 1.44269504088896341);
    float rest = (x - whole * 0.693359375) + whole * 2.12194440e-4;
    float sum = rest * 1.9875691500e-4 + 1.3981999507e-3;
    sum = sum * rest + 8.3334519073e-3;
    sum = sum * rest + 4.1665795894e-2;
    sum = sum * rest + 1.6666665459e-1;
    sum = sum * rest + 5.0000001201e-1;
    sum = sum * rest * rest + rest + 1.0;
    return sum * intBitsToFloat((int(whole) + 127) << 23);
}

float sigmoid(float x) { return 1.0 / (1.0 + power(-x)); }

// Natural logarithm of a normal number above 0 (Cephes, logf).
float logarithm(float x) {
    int bits = floatBitsToInt(x);
    float exponent = float((bits >> 23) - 126);
    float part = intBitsToFloat((bits & 0x7fffff) | 0x3f000000);
    if (part < 0.707106781186547524) {
        exponent -= 1.0;
        part += part;
    }
    part -= 1.0;
    float square = part * part;
    float sum = 7.0376836292e-2 * part - 1.1514610310e-1;
    sum = sum * part + 1.1676998740e-1;
    sum = sum * part - 1.2420140846e-1;
    sum = sum * part + 1.4249322787e-1;
    sum = sum * part - 1.6668057665e-1;
    sum = sum * part + 2.0000714765e-1;
    sum = sum * part - 2.4999993993e-1;
    sum = sum * part + 3.3333331174e-1;
    sum = sum * part * square - 2.12194440e-4 * exponent - 0.5 * square;
    return part + sum + 0.693359375 * exponent;
}

// Reduce `parts[k]` to its sum or its largest, in its first place.
void gather_sums(int first, int last) {
    for (int step = GROUP / 2; step > 0; step /= 2) {
        barrier();
        for (int k = first; k <= last && gl_LocalInvocationIndex < step; ++k) {
            parts[k][gl_LocalInvocationIndex] += parts[k][gl_LocalInvocationIndex + step];
        }
    }
    barrier();
}

void gather_largest(int first, int last) {
    for (int step = GROUP / 2; step > 0; step /= 2) {
        barrier();
        for (int k = first; k <= last && gl_LocalInvocationIndex < step; ++k) {
            parts[k][gl_LocalInvocationIndex] =
                max(parts[k][gl_LocalInvocationIndex], parts[k][gl_LocalInvocationIndex + step]);
        }
    }
    barrier();
}

float recalled(int tiles, int tile) {
    return recall_attention * maps[PRIOR * tiles + tile] + recall_similarity * maps[(PRIOR + 1) * tiles + tile];
}

void contradict(ivec2 size, int tiles, int me, float most_trust) {
    float seen = 0.0, all = 0.0, usual = 0.0;
    for (int tile = me; tile < tiles; tile += GROUP) {
        ivec2 place = ivec2(tile % size.x, tile / size.x);
        float near = 0.0;
        for (int k = 0; k < 9; ++k) {
            ivec2 at = clamp(place + ivec2(k % 3, k / 3) - 1, ivec2(0), size - 1);
            near = max(near, maps[PERSPECTIVE * tiles + at.y * size.x + at.x]);
        }
        float square = maps[PRIOR * tiles + tile] * maps[PRIOR * tiles + tile];
        float looked = square * square * maps[(PRIOR + 2) * tiles + tile];
        seen += looked * near;
        all += looked;
        usual += near;
    }
    parts[0][me] = seen;
    parts[1][me] = all;
    parts[2][me] = usual;
    gather_sums(0, 2);
    if (me == 0) {
        all = parts[1][0];
        usual = parts[2][0] / float(tiles);
        float share = parts[0][0] / max(all, tiny) / max(usual, tiny);
        float degree = clamp((looked_at - share) / (looked_at - looked_away), 0.0, 1.0);
        doubt = all > tiny && usual > tiny ? degree * min(most_trust / sure, 1.0) : 0.0;
    }
    barrier();
}

void balance(float most_trust) {
    float means[6], logits[3];
    for (int k = 0; k < 6; ++k) {
        means[k] = parts[k][0];
    }
    int bias = balancer + 6 * width, out_of = bias + width, out_bias = out_of + 3 * width;
    for (int k = 0; k < 3; ++k) {
        logits[k] = weights[out_bias + k];
    }
    for (int h = 0; h < width; ++h) {
        float sum = weights[bias + h];
        for (int k = 0; k < 6; ++k) {
            sum += weights[balancer + h * 6 + k] * means[k];
        }
        for (int k = 0; k < 3; ++k) {
            logits[k] += weights[out_of + k * width + h] * max(sum, 0.0);
        }
    }
    float strength = min(means[4] / weak, 1.0);
    float information = sigmoid(logits[0]);
    shares[0] = information + (1.0 - information) * (1.0 - strength);
    shares[1] = sigmoid(logits[1]) * strength * (1.0 - doubt);
    shares[2] = sigmoid(logits[2]) * most_trust;
    float sum = max(shares[0] + shares[1] + shares[2], 1e-6);
    for (int k = 0; k < 3; ++k) {
        shares[k] /= sum;
    }
}

// Where a tile of this frame was in the frame before: its four tiles there and their shares; false if it came into view.
bool came_from(ivec2 size, int tiles, int tile, out ivec4 at, out vec4 part) {
    at = ivec4(tile);
    part = vec4(1.0, 0.0, 0.0, 0.0);
    if (moved == 0) {
        return true;
    }
    vec2 origin = vec2(maps[ORIGIN * tiles + tile], maps[(ORIGIN + 1) * tiles + tile]);  // row, column
    vec2 between = roundEven(origin * 32.0) / 32.0;
    vec2 whole = floor(between);
    vec2 rest = between - whole;
    ivec2 last = size.yx - 1;
    ivec2 first = clamp(ivec2(whole), ivec2(0), last), second = clamp(ivec2(whole) + 1, ivec2(0), last);
    at = ivec4(first.x * size.x + first.y, first.x * size.x + second.y, second.x * size.x + first.y,
               second.x * size.x + second.y);
    part = vec4((1.0 - rest.x) * (1.0 - rest.y), (1.0 - rest.x) * rest.y, rest.x * (1.0 - rest.y), rest.x * rest.y);
    return all(greaterThanEqual(origin, vec2(-0.5))) && all(lessThanEqual(origin, vec2(size.yx) - 0.5));
}

float earlier(int plane, int tiles, ivec4 at, vec4 part) {
    int first = (past + plane) * tiles;
    return maps[first + at.x] * part.x + maps[first + at.y] * part.y + maps[first + at.z] * part.z +
           maps[first + at.w] * part.w;
}

void main() {
    int me = int(gl_LocalInvocationIndex);
    ivec2 size = textureSize(words, 5);
    int tiles = size.x * size.y;

    // what was fed back
    float usual = 0.0, most_trust = 0.0;
    if (taught != 0) {
        float known = 0.0, all = 0.0, most = 0.0;
        for (int tile = me; tile < tiles; tile += GROUP) {
            float trust = maps[(PRIOR + 2) * tiles + tile];
            known += trust;
            all += recalled(tiles, tile) * trust;
            most = max(most, trust);
        }
        parts[0][me] = known;
        parts[1][me] = all;
        parts[2][me] = most;
        gather_sums(0, 1);
        gather_largest(2, 2);
        usual = parts[1][0] / max(parts[0][0], 1e-6);
        most_trust = parts[2][0];
        barrier();
    }

    // scores, and the mean and the largest of each
    float mean[3] = float[](0.0, 0.0, 0.0), largest[3] = float[](0.0, 0.0, 0.0);
    for (int tile = me; tile < tiles; tile += GROUP) {
        float score[3] = float[](maps[INFORMATION * tiles + tile], maps[PERSPECTIVE * tiles + tile], 0.0);
        if (scored == 0) {
            score[0] = maps[ENTROPY * tiles + tile] * sigmoid(score[0]);
            score[1] = sigmoid(score[1]);
        }
        if (taught != 0) {
            score[2] = usual + maps[(PRIOR + 2) * tiles + tile] * (recalled(tiles, tile) - usual);
        }
        for (int k = 0; k < 3; ++k) {
            maps[(INFORMATION + k) * tiles + tile] = score[k];
            mean[k] += score[k];
            largest[k] = max(largest[k], score[k]);
        }
    }
    for (int k = 0; k < 3; ++k) {
        parts[k][me] = mean[k];
        parts[3 + k][me] = largest[k];
    }
    doubt = 0.0;
    memoryBarrierBuffer();
    gather_sums(0, 2);
    gather_largest(3, 5);
    float statistics[6];
    for (int k = 0; k < 6; ++k) {
        statistics[k] = k < 3 ? parts[k][0] / float(tiles) : parts[k][0];
    }
    barrier();
    if (taught != 0) {
        contradict(size, tiles, me, most_trust);
    }
    if (me == 0) {
        for (int k = 0; k < 6; ++k) {
            parts[k][0] = statistics[k];
        }
        balance(most_trust);
    }
    barrier();

    // relevance of this frame, and blended
    float farthest = 0.0;
    for (int tile = me; tile < tiles; tile += GROUP) {
        float now = shares[0] * maps[INFORMATION * tiles + tile] + shares[1] * maps[PERSPECTIVE * tiles + tile] +
                    shares[2] * maps[PARTICIPATION * tiles + tile];
        if (taught != 0) {
            float trust = maps[(PRIOR + 2) * tiles + tile];
            trust += doubt * (min(alone * trust, 1.0) - trust);
            float evidence = 2.0 * trust * logarithm((recalled(tiles, tile) + faint) / (usual + faint));
            float held = clamp(now, odds_limit, 1.0 - odds_limit);
            now = sigmoid(logarithm(held / (1.0 - held)) + evidence);
        }
        if (weighed != 0) {
            now *= maps[FACTOR * tiles + tile];
        }
        maps[RELEVANCE * tiles + tile] = now;
        float blended = now, shown = now;
        ivec4 at;
        vec4 part;
        if (fresh == 0 && came_from(size, tiles, tile, at, part)) {
            float change = 0.0;
            for (int k = 0; k < 6; ++k) {
                change = max(change, abs(maps[LOOKS[k] * tiles + tile] - earlier(LOOKED + k, tiles, at, part)));
            }
            blended = now + kept * (1.0 - min(change / renewal, 1.0)) * (earlier(BLENDED, tiles, at, part) - now);
            float before = earlier(OUTPUT, tiles, at, part);
            shown = abs(blended - before) <= band ? before : blended;
        }
        farthest = max(farthest, abs(blended - now));
        maps[(next + BLENDED) * tiles + tile] = blended;
        maps[(next + OUTPUT) * tiles + tile] = shown;
        for (int k = 0; k < 6; ++k) {
            maps[(next + LOOKED + k) * tiles + tile] = maps[LOOKS[k] * tiles + tile];
        }
    }
    parts[0][me] = farthest;
    gather_largest(0, 0);
    if (parts[0][0] < settled) {
        for (int tile = me; tile < tiles; tile += GROUP) {
            maps[(next + BLENDED) * tiles + tile] = maps[RELEVANCE * tiles + tile];
        }
    }
}
