"""The texture on OpenGL 4.5, through EGL and without a screen; kernels are in `kernels/*.comp`."""
