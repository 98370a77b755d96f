"""A command for each match of a watch."""

from stream.extension import Extension, SinkType

EXTENSION = Extension(
    name="on_match",
    section="stream.extensions.on_match.section:OnMatchSection",
    sinks=(
        SinkType(
            option="--on-match",
            applies_if="stream.extensions.on_match.sink:commands_of",
            open="stream.extensions.on_match.sink:MatchCommandSink.open",
        ),
    ),
)
