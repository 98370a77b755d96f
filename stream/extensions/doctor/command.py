"""`doctor` command: checks of this machine; and `devices`: its cameras."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stream.commands.options import GivenOptions, parse_count, takes_options, text_option
from stream.commands.outcome import FAILED
from stream.errors import ConfigError
from stream.extensions.doctor.gpu_check import DEFAULT_FILE, check_gpu
from stream.untrusted import CLIENTS_MAX

if TYPE_CHECKING:
    from stream.config import Config
    from stream.sources.cameras import Camera, CameraMode


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> int:
    """List the cameras of this machine and their modes."""
    from stream.logs import print_line
    from stream.sources.cameras import list_cameras, none_found

    cameras = list_cameras()
    if as_json:
        print_line(json.dumps({"cameras": [_devices_as_json(camera) for camera in cameras]}, indent=2))
    elif cameras:
        print_line("\n".join(_lines(cameras)))
    else:
        print_line(f"no camera: {'; '.join(none_found())}")
    return 0


def _devices_as_json(camera: Camera) -> dict[str, object]:
    modes = [{"camera_mode": mode.setting, **asdict(mode)} for mode in camera.modes]
    return {"address": camera.address, **asdict(camera), "modes": modes}


def _lines(cameras: Sequence[Camera]) -> list[str]:
    lines = []
    for camera in cameras:
        of = ", ".join(filter(None, [camera.driver, camera.bus]))
        label = " ".join(filter(None, [camera.name, f"({of})" if of else ""]))
        lines.append(f"{camera.address:<4} {camera.device}  {label}".rstrip())
        if camera.problem is not None:
            lines.append(f"     {camera.problem}")
        width = max((len(mode.setting) for mode in camera.modes), default=0)
        lines += [f"     {mode.setting:<{width}}  {_rates(mode)}".rstrip() for mode in camera.modes]
    usable = next((camera for camera in cameras if camera.modes), None)
    if usable is not None:
        mode = usable.modes[0].setting
        lines += ["", f"watch {usable.address} --set capture.camera_mode={mode}"]
    return lines


def _rates(mode: CameraMode) -> str:
    if not mode.fps:
        return ""
    rates = [f"{rate:g}" for rate in mode.fps]
    if mode.any_between:
        return f"{rates[-1]} to {rates[0]} fps"
    return f"{' '.join(rates)} fps"


STATE_WIDTH = 6
PART_WIDTH = 12
"""Columns of the first two things in a row. Rows are printed one by one, so their widths are fixed."""

STYLES = {"works": "green", "absent": "yellow", "broken": "bold red"}


@takes_options
def doctor(
    streams: Annotated[
        str,
        text_option("--streams", metavar="N", help=f"Runs that share one model, at most {CLIENTS_MAX}. [1]"),
    ] = "1",
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Check and time every path of CUDA and OpenGL, in five minutes at most.")
    ] = False,
    out: Annotated[
        str | None, text_option("--out", metavar="FILE", help=f"Report of --gpu, to attach. [{DEFAULT_FILE}]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
    *,
    options: GivenOptions,
) -> int:
    """Check this machine, and say how to fix what does not work."""
    config = options.configuration()
    if gpu:
        return check_gpu(config, out or DEFAULT_FILE, as_json=as_json)
    if out is not None:
        raise ConfigError("--out is the report of --gpu, which is not given; add --gpu, or leave --out out")
    count = parse_count("--streams", streams, CLIENTS_MAX)
    if as_json:
        show = _checks_as_json
    else:
        show = _at_terminal if sys.stdout.isatty() else _as_lines
    return 0 if show(config, count) else FAILED


def _checks_as_json(config: Config, streams: int) -> bool:
    """Print all checks in one object, when the last one is made; return whether all that is needed works."""
    from stream.extensions.doctor.examination import all_needed_work, examine
    from stream.logs import print_line

    checks = list(examine(config, streams))
    works = all_needed_work(checks)
    print_line(json.dumps({"works": works, "checks": [asdict(check) for check in checks]}, indent=2))
    return works


def _as_lines(config: Config, streams: int) -> bool:
    """Print a line for each check, as soon as it is made."""
    from stream.extensions.doctor.examination import all_needed_work, examine
    from stream.logs import print_line

    checks = []
    for check in examine(config, streams):
        checks.append(check)
        remedy = f"; do: {check.remedy}" if check.remedy else ""
        print_line(f"{check.state:<{STATE_WIDTH}}  {check.part:<{PART_WIDTH}}  {check.found}{remedy}")
    return all_needed_work(checks)


def _at_terminal(config: Config, streams: int) -> bool:
    """Print a row for each check, as soon as it is made; below them, the part that is checked at the moment."""
    from rich.table import Table
    from rich.text import Text

    from stream.display.progress import PlainConsole

    console = PlainConsole()
    with console.status("starting", spinner="line") as status:
        from stream.extensions.doctor.examination import all_needed_work, examine

        checks = []
        for check in examine(config, streams, lambda part: status.update(f"checking {part}")):
            checks.append(check)
            finding = Text(check.found)
            if check.remedy:
                finding.append(f"\n→ {check.remedy}", style="bold")
            row = Table.grid(padding=(0, 2, 0, 0))
            row.add_column(width=STATE_WIDTH, no_wrap=True)
            row.add_column(width=PART_WIDTH, no_wrap=True)
            row.add_column(overflow="fold")
            row.add_row(Text(check.state, style=STYLES[check.state]), check.part, finding)
            console.print(row)
    return all_needed_work(checks)
