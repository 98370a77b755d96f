"""The past of cameras in an SQLite file: answers, matches, outages and small pictures; search and recap."""

from stream.extension import CommandType, Extension, SinkType

EXTENSION = Extension(
    name="past",
    section="stream.extensions.past.section:PastSection",
    sinks=(
        SinkType(
            key="past.file",
            option="--remember",
            place="shared file",
            pictures="asked",
            check="stream.extensions.past.sink:check",
            open="stream.extensions.past.sink:PastSink.open",
        ),
    ),
    page_panel="stream.extensions.past.panel:routes",
    commands=(
        CommandType(function="stream.extensions.past.commands.search:search", before="serve-answers"),
        CommandType(function="stream.extensions.past.commands.recap:recap", before="serve-answers"),
    ),
)
