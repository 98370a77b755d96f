"""Bench: frames a second, latency, jitter and drops of runs, compared run by run."""

from stream.extension import CommandType, Extension

EXTENSION = Extension(
    name="bench",
    commands=(CommandType(function="stream.extensions.bench.command:bench", before="serve-answers", grouped=True),),
)
