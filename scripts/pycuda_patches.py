"""A kernel of one's own on the shared texture's patches, run by PyCUDA.

    pip install pycuda
    python scripts/pycuda_patches.py

PyCUDA works in torch's primary context, so tensors and its arrays are in the same memory; it takes their addresses.
"""

from __future__ import annotations

import numpy as np
import torch

SOURCE = r"""
extern "C" __global__ void contrast(const unsigned char *patches, float *out) {
    __shared__ int darkest, brightest;
    if (threadIdx.x == 0) {
        darkest = 255;
        brightest = 0;
    }
    __syncthreads();
    const unsigned char *red = patches + blockIdx.x * 3072, *green = red + 1024, *blue = green + 1024;
    for (int i = (int)threadIdx.x; i < 1024; i += (int)blockDim.x) {
        const int luma = (299 * red[i] + 587 * green[i] + 114 * blue[i] + 500) / 1000;
        atomicMin(&darkest, luma);
        atomicMax(&brightest, luma);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        out[blockIdx.x] = (float)(brightest - darkest) / 255.0f;
    }
}
"""
"""Difference of the brightest texel of a patch and its darkest. One block of 256 threads a patch."""

THREADS = 256


def contrasts(patches: torch.Tensor) -> torch.Tensor:
    """Contrast in [0, 1] of patches uint8 [K, 3, 32, 32] on a CUDA device: float32 [K] there."""
    import pycuda.driver as cuda
    from pycuda.compiler import SourceModule

    out = torch.empty(len(patches), device=patches.device)
    torch.cuda.current_stream(patches.device).synchronize()
    cuda.init()
    context = cuda.Device(patches.device.index).retain_primary_context()
    context.push()
    try:
        kernel = SourceModule(SOURCE, no_extern_c=True).get_function("contrast")
        addresses = (np.uintp(patches.data_ptr()), np.uintp(out.data_ptr()))
        kernel(*addresses, block=(THREADS, 1, 1), grid=(len(patches), 1))
        context.synchronize()
    finally:
        context.pop()
    return out


def main() -> None:
    from arr_coc.backends.cuda.store import CudaStore
    from arr_coc.texture.store.planes import PlaneFormat, Thresholds
    from arr_coc.types import FramePlanes, FrameStamp

    ramp = np.linspace(0, 255, 256, dtype=np.uint8)
    planes = FramePlanes("gray", (np.minimum.outer(ramp, ramp),))
    store = CudaStore(PlaneFormat.of(planes), Thresholds(), 1000)
    store.update(planes, FrameStamp(0, 0, 0))
    with store.lease() as view:
        patches = view.patches(np.array([(0, row, col) for row in range(8) for col in range(8)]))
    print(contrasts(patches).reshape(8, 8).cpu())
    store.close()


if __name__ == "__main__":
    main()
