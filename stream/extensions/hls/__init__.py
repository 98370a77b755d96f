"""HTTP live streaming: the source's video with the answers as captions."""

from stream.extension import Extension, SinkType

EXTENSION = Extension(
    name="hls",
    section="stream.extensions.hls.section:HlsSection",
    sinks=(
        SinkType(
            help="a stream with captions (docs/streaming.md)",
            suffixes=(".m3u8",),
            form="file in own folder",
            needs=frozenset({"segments"}),
            check="stream.extensions.hls.folder:check",
            open="stream.extensions.hls.sink:HlsSink.open",
        ),
    ),
)
