"""Answers as CSV and a filter of them, a bouncing ball, a model that is asked in CSV, and a command that counts."""

from stream.extension import CommandType, Extension, ModelType, SinkType, SourceType

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
    models=(
        ModelType(
            key="csv.server",
            option="--csv-server",
            name="arr_coc_csv.section:model_name",
            load="arr_coc_csv.model:CsvModel",
        ),
    ),
    answer_filter="arr_coc_csv.filter:HiddenWords.of",
    commands=(CommandType(function="arr_coc_csv.command:count"),),
)
