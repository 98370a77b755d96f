#version 450
// The places of the largest values, the largest first; of equal ones the lower place comes first.
//
// Each value's rank is how many come before it: n² comparisons, all alike. One invocation ranks four values, so that
// it loads a quarter as often.

layout(local_size_x = 32) in;

layout(std430, binding = 0) readonly restrict buffer Values { vec4 values[]; };   // padded with −infinity
layout(std430, binding = 1) writeonly restrict buffer Places { uint places[]; };  // as many as are wanted

void main() {
    uint me = gl_GlobalInvocationID.x;
    uint fours = uint(values.length());
    if (me >= fours) {
        return;
    }
    vec4 mine = values[me];
    uvec4 my_place = me * 4u + uvec4(0u, 1u, 2u, 3u);
    uvec4 rank = uvec4(0u);
    for (uint four = 0u; four < fours; ++four) {
        vec4 others = values[four];
        for (uint index = 0u; index < 4u; ++index) {
            vec4 other = vec4(others[index]);
            uvec4 earlier = uvec4(lessThan(uvec4(four * 4u + index), my_place));
            rank += uvec4(greaterThan(other, mine)) | (uvec4(equal(other, mine)) & earlier);
        }
    }
    for (uint index = 0u; index < 4u; ++index) {
        if (rank[index] < uint(places.length())) {
            places[rank[index]] = my_place[index];
        }
    }
}
