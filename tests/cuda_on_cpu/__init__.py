"""CUDA without a GPU: the driver's calls and the kernels' own sources, compiled for the CPU."""
