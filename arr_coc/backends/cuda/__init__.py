"""The texture on CUDA: a mipmapped array that kernels write and sample; their sources are `kernels/*.cu`."""
