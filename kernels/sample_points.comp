#version 450
// Colours at points of the texture, filtered by the hardware: one invocation a sample.
//
// PROBES: several isotropic samples along a footprint instead of one anisotropic one, for llvmpipe, which takes the
// gradients of the anisotropic filter from neighbouring invocations and not from textureGrad.

layout(local_size_x = 64) in;

struct Sample {
    vec2 place;    // in texels of level 0
    vec2 along;    // the footprint's long axis, in texels of level 0
    float across;  // its width
    float level;   // if it has no footprint
    vec2 unused;
};

layout(std430, binding = 0) readonly restrict buffer Samples { Sample samples[]; };
layout(std430, binding = 1) writeonly restrict buffer Colours { float colours[]; };
layout(binding = 0) uniform sampler2D texels;

const float MOST_PROBES = 16.0;

vec3 averaged(Sample wanted, vec2 size, float length_px) {
#ifdef PROBES
    float count = clamp(ceil(length_px / wanted.across), 1.0, MOST_PROBES);
    float level = log2(max(max(wanted.across, length_px / count), 1.0));
    vec3 sum = vec3(0.0);
    for (float probe = 0.5; probe < count; probe += 1.0) {
        vec2 place = wanted.place + wanted.along * (probe / count - 0.5);
        sum += textureLod(texels, place / size, level).rgb;
    }
    return sum / count;
#else
    vec2 aside = vec2(-wanted.along.y, wanted.along.x) * (wanted.across / length_px);
    return textureGrad(texels, wanted.place / size, wanted.along / size, aside / size).rgb;
#endif
}

void main() {
    uint me = gl_GlobalInvocationID.x;
    if (me >= uint(samples.length())) {
        return;
    }
    Sample wanted = samples[me];
    vec2 size = vec2(textureSize(texels, 0).xy);
    float length_px = length(wanted.along);
    vec3 colour = length_px > 0.0 ? averaged(wanted, size, length_px)
                                  : textureLod(texels, wanted.place / size, wanted.level).rgb;
    colours[3u * me] = colour.r;
    colours[3u * me + 1u] = colour.g;
    colours[3u * me + 2u] = colour.b;
}
