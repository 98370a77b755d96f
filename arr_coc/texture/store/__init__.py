"""Texture backends: one contract, the same bytes from every backend."""
