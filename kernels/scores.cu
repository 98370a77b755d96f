// The allocator's work on the device: how informative each tile is, and which are the best.
#include "texture.cuh"

#define MANY 1024

// Entropy gated by a sigmoid of the channels' weighted sum: `channels` float32 [C, n], `entropy` and `out` float32 [n],
// `weights` float32 [C + 1], the last of which is the bias. Grid: enough blocks of 256 threads for n.
extern "C" __global__ void __launch_bounds__(THREADS)
information_scores(const float *channels, const float *entropy, const float *weights, int count, int n, float *out) {
    const int tile = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (tile >= n) {
        return;
    }
    float sum = weights[count];
    for (int k = 0; k < count; ++k) {
        sum += weights[k] * channels[(long long)k * n + tile];
    }
    out[tile] = entropy[tile] / (1.0f + expf(-sum));
}

// A number that orders as the float does; −0 equals 0, and NaN comes before all.
__device__ inline unsigned key_of(float value) {
    if (value != value) {
        return 0;
    }
    const unsigned bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The sum of `mine` over this thread and those before it, of 1024.
__device__ inline int scan(int mine, int *scratch) {
    const int thread = (int)threadIdx.x;
    scratch[thread] = mine;
    __syncthreads();
    for (int step = 1; step < MANY; step *= 2) {
        const int before = thread >= step ? scratch[thread - step] : 0;
        __syncthreads();
        scratch[thread] += before;
        __syncthreads();
    }
    return scratch[thread];
}

// The indices of the k largest of `values` float32 [n], of equals the first; ascending, so in token order: `out` int64
// [k]. One block of 1024 threads. 1 ≤ k ≤ n.
//
// The k-th largest key is found byte by byte, from histograms; then each thread takes from a run of neighbours.
extern "C" __global__ void __launch_bounds__(MANY) top_k(const float *values, int n, int k, long long *out) {
    __shared__ int scratch[MANY];
    __shared__ int bins[256];
    __shared__ unsigned prefix;
    __shared__ int wanted;
    const int thread = (int)threadIdx.x;
    if (thread == 0) {
        prefix = 0;
        wanted = k;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (thread < 256) {
            bins[thread] = 0;
        }
        __syncthreads();
        for (int i = thread; i < n; i += MANY) {
            const unsigned key = key_of(values[i]);
            if (shift == 24 || (key ^ prefix) >> (shift + 8) == 0) {
                atomicAdd(&bins[key >> shift & 255], 1);
            }
        }
        __syncthreads();
        const int bin = 255 - thread, mine = thread < 256 ? bins[bin] : 0, left = wanted;
        const int upto = scan(mine, scratch);
        if (upto >= left && upto - mine < left) {
            prefix |= (unsigned)bin << shift;
            wanted = left - (upto - mine);
        }
        __syncthreads();
    }
    const int each = (n + MANY - 1) / MANY, first = thread * each, last = min(first + each, n);
    const unsigned least = prefix;
    int larger = 0, equal = 0;
    for (int i = first; i < last; ++i) {
        const unsigned key = key_of(values[i]);
        larger += key > least;
        equal += key == least;
    }
    const int equal_before = scan(equal, scratch) - equal;
    int room = max(0, min(wanted - equal_before, equal));
    int at = scan(larger + room, scratch) - larger - room;
    for (int i = first; i < last; ++i) {
        const unsigned key = key_of(values[i]);
        if (key > least || (key == least && room-- > 0)) {
            out[at++] = i;
        }
    }
}
