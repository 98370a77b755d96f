"""`devices`: the cameras of this machine, and their modes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stream.sources.cameras import Camera, CameraMode


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for scripts.")] = False,
) -> int:
    """List the cameras of this machine and their modes."""
    from stream.logs import print_line
    from stream.sources.cameras import list_cameras, none_found

    cameras = list_cameras()
    if as_json:
        print_line(json.dumps({"cameras": [_as_json(camera) for camera in cameras]}, indent=2))
    elif cameras:
        print_line("\n".join(_lines(cameras)))
    else:
        print_line(f"no camera: {'; '.join(none_found())}")
    return 0


def _as_json(camera: Camera) -> dict[str, object]:
    modes = [{"camera_mode": mode.setting, **asdict(mode)} for mode in camera.modes]
    return {"address": camera.address, **asdict(camera), "modes": modes}


def _lines(cameras: Sequence[Camera]) -> list[str]:
    lines = []
    for camera in cameras:
        of = ", ".join(filter(None, [camera.driver, camera.bus]))
        named = " ".join(filter(None, [camera.name, f"({of})" if of else ""]))
        lines.append(f"{camera.address:<4} {camera.device}  {named}".rstrip())
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
    shown = [f"{rate:g}" for rate in mode.fps]
    return f"{shown[-1]} to {shown[0]} fps" if mode.any_between else f"{' '.join(shown)} fps"
