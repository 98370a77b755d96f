"""`search` command: moments of the past by their words, from the file of --remember."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arr_coc.errors import counted
from stream.commands.options import parse_count, text_option
from stream.commands.outcome import report_note

if TYPE_CHECKING:
    from stream.extensions.past.search import FoundMoment, PastReader, Search

NOTHING_FOUND = 3
"""Exit status if there is no such moment, as `--until` has it for what was never seen."""

PAST_FILE = "past.sqlite"

LIMIT = "20"
LIMIT_MAX = 1000

COLUMNS_MIN = 40

INDENT = "    "

PastFile = Annotated[
    str, typer.Argument(metavar="[FILE]", help=f"File of --remember. [{PAST_FILE}]", show_default=False)
]
Since = Annotated[
    str | None,
    text_option(
        "--since", metavar="TIME", help="From then on: 2h, 3d (ago), 14:30, 2026-11-27T14:30. [the file's begin]"
    ),
]
Before = Annotated[str | None, text_option("--before", metavar="TIME", help="Up to then, written as --since. [now]")]
Cameras = Annotated[
    list[str] | None, text_option("--camera", metavar="NAME", help="Of this camera; may be repeated. [all]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines, for scripts.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")]


def search(
    words: Annotated[
        str,
        typer.Argument(
            metavar="WORDS", help='Words that must all be there, "two words" beside each other, or begin*; "" for all.'
        ),
    ],
    file: PastFile = PAST_FILE,
    since: Since = None,
    before: Before = None,
    camera: Cameras = None,
    kind: Annotated[
        list[str] | None, text_option("--kind", metavar="NAME", help="answer, match or outage; may be repeated. [all]")
    ] = None,
    limit: Annotated[str, text_option("--limit", metavar="N", help=f"Print at most the newest N. [{LIMIT}]")] = LIMIT,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Search what cameras saw, by words.

    The file is written by runs with --remember, also while it is searched. Times are those of the frames, the oldest
    first. The exit status is 3 if nothing is found.
    """
    from dataclasses import replace

    from stream.extensions.past.search import PastReader, Query
    from stream.logs import print_line

    count = parse_count("--limit", limit, LIMIT_MAX)
    request = search_of(since, before, camera, kind)
    request = replace(request, query=Query.of(words), limit=count + 1)
    reader = PastReader(file)
    try:
        check_cameras(reader.cameras(), request.cameras, file)
        moments = reader.find(request)
    finally:
        reader.close()
    report_left_out(reader)
    columns = max(COLUMNS_MIN, shutil.get_terminal_size().columns)
    for moment in reversed(moments[:count]):
        for line in [json_line(moment)] if as_json else text_lines(moment, columns):
            print_line(line)
    if len(moments) > count:
        report_note(f"note: there are older ones; give --limit, or --before {local_time(moments[count - 1].unix_ms)}")
    if not moments:
        report_note("nothing found")
    return 0 if moments else NOTHING_FOUND


def search_of(
    since: str | None, before: str | None, cameras: Sequence[str] | None, kinds: Sequence[str] | None = None
) -> Search:
    """Return the search that the options ask for.

    Args:
        since: Earliest time, as typed: `2h`, `14:30`, `2026-11-27`; None for no limit.
        before: Time that all moments precede, as typed; None for no limit.
        cameras: Names of cameras; None for all.
        kinds: Kinds of moments; None for all.

    Raises:
        ConfigError: A time cannot be read, `since` is not before `before`, or a kind is unknown.
    """
    from datetime import datetime

    from stream.errors import ConfigError
    from stream.extensions.past.moments import KINDS
    from stream.extensions.past.search import Search
    from stream.options.past_times import parse_past_time

    for kind in kinds or ():
        if kind not in KINDS:
            raise ConfigError(f"--kind is {', '.join(KINDS[:-1])} or {KINDS[-1]}; got {kind!r}")
    now = datetime.now()
    if since is None:
        since_ms = None
    else:
        since_ms = parse_past_time("--since", since, now)
    if before is None:
        until_ms = None
    else:
        until_ms = parse_past_time("--before", before, now)
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise ConfigError(f"--since {since} is not before --before {before}; change one of them")
    return Search(since_ms=since_ms, until_ms=until_ms, cameras=tuple(cameras or ()), kinds=tuple(kinds or ()))


def check_cameras(known_cameras: Sequence[str], cameras: Sequence[str], file: str) -> None:
    """Raise ConfigError for a camera that the file does not know."""
    from stream.errors import ConfigError
    from stream.untrusted import cut_to

    for name in cameras:
        if name not in known_cameras:
            names = cut_to(", ".join(known_cameras) or "none", 400)
            raise ConfigError(f"{file!r} has no camera {name!r}; there are: {names}")


def report_left_out(reader: PastReader) -> None:
    """Report the rows of a file that could not be read, if there are any."""
    if reader.notice is not None:
        report_note(reader.notice)


def text_lines(moment: FoundMoment, columns: int) -> list[str]:
    """Return a moment for people: time, camera and media time in one line, and the text below, wrapped."""
    from stream.clock import clock_text
    from stream.extensions.past.moments import MATCH
    from stream.untrusted import printable

    head = f"{local_time(moment.unix_ms)}  {printable(moment.camera)}"
    if moment.kind == MATCH:
        head += f"  match {100 * (moment.yes or 0):.0f} %"
    head += f"  at {clock_text(moment.pts_s)}"
    if moment.times > 1:
        head += f", until {clock_text(moment.end_s)} ({counted(moment.times, 'time')})"
    clip = moment.clip_video or moment.clip_picture
    lines = [printable(moment.text) or "(no text)", *([] if clip is None else [f"clip: {printable(clip)}"])]
    return [
        *textwrap.wrap(head, columns, subsequent_indent=INDENT),
        *(
            part
            for line in lines
            for part in textwrap.wrap(line, columns, initial_indent=INDENT, subsequent_indent=INDENT)
        ),
    ]


def json_line(moment: FoundMoment) -> str:
    """Return a moment as a line of JSON, with its times also in ISO 8601 (UTC)."""
    import msgspec

    from stream.untrusted import printable_json

    return printable_json(msgspec.json.encode(plain(moment)).decode())


def plain(moment: FoundMoment) -> dict[str, Any]:
    """Return a moment as plain values."""
    import json
    from dataclasses import asdict

    from stream.options.past_times import iso_time

    values = asdict(moment)
    values["fields"] = None if moment.fields is None else json.loads(moment.fields)
    return {"time": iso_time(moment.unix_ms), "until": iso_time(moment.last_ms), **values}


def local_time(unix_ms: int) -> str:
    """Return a Unix time in the zone of this machine: `2026-11-27T14:30:05`, as --since takes it."""
    from datetime import datetime

    return datetime.fromtimestamp(unix_ms / 1000).isoformat(timespec="seconds")
