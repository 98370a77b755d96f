"""`recap` command: what happened in a time, summarised by a model from the file of --remember."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated

from arr_coc.errors import counted
from stream.commands.options import GivenOptions, takes_options, text_option
from stream.commands.outcome import report_note
from stream.extensions.past.commands.search import (
    COLUMNS_MIN,
    INDENT,
    NOTHING_FOUND,
    PAST_FILE,
    AsJson,
    Before,
    Cameras,
    PastFile,
    check_cameras,
    local_time,
    report_left_out,
    search_of,
)

if TYPE_CHECKING:
    from stream.config import Config
    from stream.extensions.past.recap import RecapProgress, Statement
    from stream.extensions.past.search import FoundMoment

SINCE = "24h"


@takes_options
def recap(
    file: PastFile = PAST_FILE,
    since: Annotated[
        str, text_option("--since", metavar="TIME", help=f"From then on: 2h, 3d (ago), 14:30, 2026-11-27. [{SINCE}]")
    ] = SINCE,
    before: Before = None,
    camera: Cameras = None,
    as_json: AsJson = False,
    *,
    options: GivenOptions,
) -> int:
    """Summarise what cameras saw.

    A model reads the answers, matches and outages of that time in pieces, as text, without pictures. The times of each
    statement are those of its piece in the file; the model writes none. The bundled model cannot summarise: name
    another with -m, or a server with --api.
    """
    from stream.extensions.past.recap import MOMENTS_MAX, read_moments
    from stream.extensions.past.search import PastReader

    config = options.configuration()
    request = search_of(since, before, camera)
    reader = PastReader(file)
    try:
        check_cameras(reader.cameras(), request.cameras, file)
        moments, has_more = read_moments(reader, request)
    finally:
        reader.close()
    report_left_out(reader)
    if not moments:
        report_note("nothing found")
        return NOTHING_FOUND
    if has_more:
        report_note(f"note: only the newest {MOMENTS_MAX} moments are read; give a shorter time, or --camera")
    return _summarise(config, moments, as_json=as_json)


def _summarise(config: Config, moments: list[FoundMoment], *, as_json: bool) -> int:
    from stream.answer.text import load_text_model
    from stream.extensions.past.recap import Recap
    from stream.logs import print_line

    model = load_text_model(config)
    if model.known_world is not None:
        report_note(
            f"note: {model.name} only knows {model.known_world} and cannot summarise; name another model with -m"
        )
    summary = Recap(moments, model, _report_progress)
    if summary.left_out:
        report_note(f"note: {summary.left_out} of {counted(len(moments), 'moment')} are left out; give a shorter time")
    columns = max(COLUMNS_MIN, shutil.get_terminal_size().columns)
    for statement in summary.statements():
        for line in [_json_line(statement)] if as_json else _text_lines(statement, columns):
            print_line(line)
    return 0


def _report_progress(progress: RecapProgress) -> None:
    import sys

    from stream import logs

    if sys.stderr.isatty() and not logs.as_json():
        report_note(f"asking the model, {progress.replies + 1} of {progress.requests}")


def _text_lines(statement: Statement, columns: int) -> list[str]:
    from stream.untrusted import printable

    times = f"{local_time(statement.since_ms)} to {local_time(statement.until_ms)}"
    if statement.level == "piece":
        camera = printable(statement.camera)
    else:
        camera = "all in all"
    head = f"{times}  {camera}  ({counted(statement.moments, 'moment')})"
    return [
        *textwrap.wrap(head, columns, subsequent_indent=INDENT),
        *textwrap.wrap(statement.text or "(no text)", columns, initial_indent=INDENT, subsequent_indent=INDENT),
    ]


def _json_line(statement: Statement) -> str:
    from dataclasses import asdict

    import msgspec

    from stream.options.past_times import iso_time
    from stream.untrusted import printable_json

    values = {"since": iso_time(statement.since_ms), "until": iso_time(statement.until_ms), **asdict(statement)}
    return printable_json(msgspec.json.encode(values).decode())
