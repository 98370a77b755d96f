"""Doctor: what works on this machine, and the remedy for what does not."""

from stream.extension import CommandType, Extension

EXTENSION = Extension(
    name="doctor",
    commands=(
        CommandType(function="stream.extensions.doctor.command:devices", before="serve-answers"),
        CommandType(function="stream.extensions.doctor.command:doctor", before="serve-answers"),
    ),
)
