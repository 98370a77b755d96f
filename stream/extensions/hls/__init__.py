"""HTTP live streaming: the source's video with the answers as captions."""

from stream.extension import Extension, SinkType
from stream.sinks.paths import HLS_SUFFIX

EXTENSION = Extension(
    name="hls",
    section="stream.extensions.hls.section:HlsSection",
    sinks=(
        SinkType(
            help="a stream with captions (docs/streaming.md)",
            suffixes=(HLS_SUFFIX,),
            open="stream.extensions.hls.sink:HlsSink.open",
        ),
    ),
)
