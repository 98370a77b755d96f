"""Texture library for vision-language models (docs/texture-library.md)."""
