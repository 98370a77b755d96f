"""Answers as CSV, words that are hidden in them, a bouncing ball as a source, and a command that counts answers."""

from stream.extension import CommandType, Extension, SinkType, SourceType

EXTENSION = Extension(
    name="csv",
    section="arr_coc_csv.section:CsvSection",
    sinks=(SinkType(help="answers as CSV", suffixes=(".csv",), open="arr_coc_csv.sink:CsvSink.open"),),
    sources=(
        SourceType(
            forms="`ball:SECONDS`",
            help="a ball that goes from left to right",
            prefixes=("ball:",),
            check="arr_coc_csv.source:seconds_of",
            open="arr_coc_csv.source:BallSource",
        ),
    ),
    answer_filter="arr_coc_csv.filter:HiddenWords.of",
    commands=(CommandType(function="arr_coc_csv.command:count"),),
)
