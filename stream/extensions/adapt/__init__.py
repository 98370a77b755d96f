"""Adaptation: an allocator for a model, learned from clips without labels."""

from stream.extension import CommandType, Extension

EXTENSION = Extension(
    name="adapt",
    commands=(CommandType(function="stream.extensions.adapt.command:adapt", before="serve-answers"),),
)
