"""Recording of requests to the answer stage and its replies, for `replay`."""

from stream.extension import CommandType, Extension, SinkType

EXTENSION = Extension(
    name="record",
    section="stream.extensions.record.section:RecordSection",
    sinks=(
        SinkType(
            key="record.folder",
            option="--record",
            place="folder",
            needs=frozenset({"record"}),
            check="stream.extensions.record.sink:check",
            open="stream.extensions.record.sink:RecordFolder.open",
        ),
    ),
    frame_observer="stream.extensions.record.recorder:Recorder.open",
    commands=(CommandType(function="stream.extensions.record.command:replay", before="serve-answers"),),
)
