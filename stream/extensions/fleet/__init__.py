"""Fleet: several cameras in one process, on one machine or a Ray cluster."""

from stream.extension import CommandType, Extension

EXTENSION = Extension(
    name="fleet",
    commands=(CommandType(function="stream.extensions.fleet.command:fleet", before="demo", grouped=True),),
)
