"""Reasons for each token, as JSON lines."""

from stream.extension import Extension, SinkType

EXTENSION = Extension(
    name="why",
    section="stream.extensions.why.section:WhySection",
    sinks=(
        SinkType(
            help="reasons for tokens",
            key="why.file",
            option="--why",
            suffixes=(".jsonl",),
            place="file",
            needs=frozenset({"reasons"}),
            open="stream.extensions.why.sink:ExplanationSink.open",
        ),
    ),
)
