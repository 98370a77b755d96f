"""The newest answer in a text file, for OBS."""

from stream.extension import Extension, SinkType

EXTENSION = Extension(
    name="overlay",
    section="stream.extensions.overlay.section:OverlaySection",
    sinks=(
        SinkType(
            help="overlay",
            key="overlay.file",
            option="--overlay",
            suffixes=(".txt",),
            place="file",
            lasts=False,
            open="stream.extensions.overlay.sink:OverlaySink.open",
        ),
    ),
)
