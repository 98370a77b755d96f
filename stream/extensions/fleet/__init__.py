"""Fleet: several cameras in one process, on one machine or a Ray cluster."""

from stream.extension import CommandType, Extension

EXTENSION = Extension(
    name="fleet",
    watch="stream.extensions.fleet.command:watch_cameras",
    commands=(CommandType(function="stream.extensions.fleet.command:fleet", before="demo", grouped=True),),
)
