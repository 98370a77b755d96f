"""`doctor`: what works here, and for what does not, what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stream.commands.outcome import FAILED
from stream.commands.text_options import Backend, Device, Dtype, Encode, text_option
from stream.guests import GUESTS_MAX
from stream.layers import build_config, option_layer

if TYPE_CHECKING:
    from rich.table import Table

    from stream.doctor import Check

STYLES = {"works": "green", "absent": "yellow", "broken": "bold red"}


def doctor(
    model: Annotated[
        str | None, text_option("--model", "-m", metavar="NAME", help="The model to look at. [bundled]")
    ] = None,
    budget: Annotated[
        str | None,
        text_option("--budget", metavar="N", help="Visual tokens a frame: 64, 27%, adaptive. [27%, within 64 to 400]"),
    ] = None,
    dtype: Dtype = None,
    window: Annotated[
        str | None, text_option("--window", metavar="N", help="Frames that an answer speaks of. [1]")
    ] = None,
    encode: Encode = None,
    backend: Backend = None,
    device: Device = None,
    streams: Annotated[
        int,
        typer.Option(
            "--streams", metavar="N", min=1, max=GUESTS_MAX, help="Served by one answer stage. [1]", show_default=False
        ),
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for scripts.")] = False,
) -> int:
    """Say what works on this machine, and for what does not, what to do."""
    given = (
        ("--model", "answer.model", model),
        ("--budget", "allocate.budget", budget),
        ("--dtype", "answer.dtype", dtype),
        ("--window", "answer.window.frames", window),
        ("--encode", "answer.encode", encode),
        ("--backend", "texture.backend", backend),
        ("--device", "answer.device", device),
    )
    config = build_config([option_layer(option, key, text) for option, key, text in given if text is not None])

    from stream.doctor import all_needed_work, examine

    checks = examine(config, streams)
    well = all_needed_work(checks)
    if as_json:
        typer.echo(json.dumps({"works": well, "checks": [asdict(check) for check in checks]}, indent=2))
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(_table(checks))
    else:
        for check in checks:
            typer.echo(_line(check))
    return 0 if well else FAILED


def _line(check: Check) -> str:
    remedy = f"; do: {check.remedy}" if check.remedy else ""
    return f"{check.state:<6}  {check.part:<12}  {check.found}{remedy}"


def _table(checks: Sequence[Check]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        found = Text(check.found)
        if check.remedy:
            found.append(f"\n→ {check.remedy}", style="bold")
        table.add_row(Text(check.state, style=STYLES[check.state]), check.part, found)
    return table
