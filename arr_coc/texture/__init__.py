"""Pictures as tiles on mipmap levels: stores that follow a stream's frames, regions, covers and compiled kernels."""
