#version 450
// Channel 12: distance of each texel of level 5 to the nearest of the frame's four colour clusters, over the colour cube's
// diagonal: k-means from a fixed start, in a fixed number of steps. One workgroup. Doubles, in which products are exact,
// give the members and bits of arr_coc/relevance/channels.py: two centres may be equally near.

layout(local_size_x = 64) in;

layout(std430, binding = 0) writeonly restrict buffer Maps { float maps[]; };
layout(binding = 0) uniform usampler2D words;

const int GROUP = 64;
const int CLUSTERS = 4;
const int STEPS = 4;
const int CHANNEL = 12;
const vec3 START[CLUSTERS] =
    vec3[](vec3(64.0), vec3(192.0), vec3(192.0, 104.0, 64.0), vec3(64.0, 104.0, 192.0));

shared vec3 centres[CLUSTERS];
shared ivec4 sums[CLUSTERS][GROUP];

ivec3 colour_of(int tile, int cols) {
    uint word = texelFetch(words, ivec2(tile % cols, tile / cols), 5).r;
    return ivec3(word & 255u, (word >> 8) & 255u, (word >> 16) & 255u);
}

// The colour's own square less its squared distance to a centre.
double nearness(int k, ivec3 colour) {
    dvec3 centre = dvec3(centres[k]);
    dvec3 twice = 2.0LF * centre * dvec3(colour);
    return twice.x + twice.y + twice.z - (centre.x * centre.x + centre.y * centre.y + centre.z * centre.z);
}

void main() {
    int me = int(gl_LocalInvocationIndex);
    ivec2 size = textureSize(words, 5);
    int tiles = size.x * size.y;
    if (me < CLUSTERS) {
        centres[me] = START[me];
    }
    barrier();
    for (int step = 0; step < STEPS; ++step) {
        ivec4 mine[CLUSTERS] = ivec4[](ivec4(0), ivec4(0), ivec4(0), ivec4(0));
        for (int tile = me; tile < tiles; tile += GROUP) {
            ivec3 colour = colour_of(tile, size.x);
            double near[CLUSTERS];
            for (int k = 0; k < CLUSTERS; ++k) {
                near[k] = nearness(k, colour);
            }
            double most = max(max(near[0], near[1]), max(near[2], near[3]));
            for (int k = 0; k < CLUSTERS; ++k) {
                mine[k] += near[k] == most ? ivec4(colour, 1) : ivec4(0);
            }
        }
        for (int k = 0; k < CLUSTERS; ++k) {
            sums[k][me] = mine[k];
        }
        barrier();
        if (me < CLUSTERS) {
            ivec4 total = ivec4(0);
            for (int i = 0; i < GROUP; ++i) {
                total += sums[me][i];
            }
            if (total.w > 0) {  // one without members keeps its centre
                centres[me] = vec3(total.xyz) / float(total.w);
            }
        }
        barrier();
    }
    for (int tile = me; tile < tiles; tile += GROUP) {
        ivec3 colour = colour_of(tile, size.x);
        double most = max(max(nearness(0, colour), nearness(1, colour)), max(nearness(2, colour), nearness(3, colour)));
        float squared = float(double(colour.r * colour.r + colour.g * colour.g + colour.b * colour.b) - most);
        maps[CHANNEL * tiles + tile] = sqrt(max(squared, 0.0)) / float(255.0LF * 1.7320508075688772LF);
    }
}
