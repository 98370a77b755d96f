"""Rerun: a run as a recording, in a file or in the viewer. Needs the extra `rerun`."""

from stream.extension import Extension, SinkType
from stream.options.extra import Extra

RERUN = Extra(
    name="rerun",
    part="rerun",
    needed_for="-o FILE.rrd and no --rerun",
    libraries=("rerun-sdk",),
    modules=("rerun", "rerun_bindings"),
    requires=", with Python 3.11 or newer",
)

SUFFIX = ".rrd"
"""Suffix of a Rerun recording."""

EXTENSION = Extension(
    name="rerun",
    section="stream.extensions.rerun.section:RerunSection",
    sinks=(
        SinkType(
            help="Rerun recording (docs/rerun.md)",
            suffixes=(SUFFIX,),
            extra=RERUN,
            pictures="every",
            open="stream.extensions.rerun.file:RerunFileSink.open",
        ),
        SinkType(
            key="rerun.address",
            option="--rerun",
            extra=RERUN,
            pictures="every",
            check="stream.extensions.rerun.address:check",
            open="stream.extensions.rerun.viewer:RerunViewerSink.open",
        ),
    ),
)
