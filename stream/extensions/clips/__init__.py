"""Pictures and videos of matches."""

from stream.extension import Extension, SinkType

EXTENSION = Extension(
    name="clips",
    section="stream.extensions.clips.section:ClipsSection",
    sinks=(
        SinkType(
            key="clips.folder",
            option="--clips",
            place="shared folder",
            pictures="asked",
            needs=frozenset({"video"}),
            check="stream.extensions.clips.folder:check",
            open="stream.extensions.clips.sink:ClipSink.open",
        ),
    ),
)
