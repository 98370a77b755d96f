"""Stores of the texture on other hardware, found through `registry.py`: the core imports neither CUDA nor OpenGL."""
