"""Answers for runs on other hosts, and the keys of their connections."""

from stream.extension import CommandType, Extension

EXTENSION = Extension(
    name="serve",
    commands=(
        CommandType(function="stream.extensions.serve.command:serve_answers"),
        CommandType(function="stream.extensions.serve.command:keys"),
    ),
)
