"""Heat map: the allocation drawn over the frames, as a video or a picture."""

from stream.extension import Extension, SinkType

EXTENSION = Extension(
    name="heatmap",
    section="stream.extensions.heatmap.section:HeatmapSection",
    sinks=(
        SinkType(
            help="heat map",
            key="heatmap.file",
            option="--heatmap",
            suffixes=(".mp4", ".png"),
            place="file",
            needs=frozenset({"overlays"}),
            open="stream.extensions.heatmap.sink:HeatmapSink.open",
        ),
    ),
)
