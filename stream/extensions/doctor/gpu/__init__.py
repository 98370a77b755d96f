"""Checks of a GPU: every path of CUDA and OpenGL against the CPU, each in its own process, then their times."""
