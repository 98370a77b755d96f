"""Reads the fake camera in a process into which it was preloaded, and prints the result as JSON.

FAKE_CAMERA=FOLDER LD_PRELOAD=fake_camera.so python -m tests.support.camera
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

from stream.errors import SourceError
from tests.support.senders import Reading, opened

CAMERA = "/dev/video42"
FAULTS = Path(os.environ["FAKE_CAMERA"])


def refusal(**capture: object) -> str:
    """The message with which opening the camera fails."""
    try:
        opened(CAMERA, **capture).close()
    except SourceError as error:
        return str(error)
    return "it was opened"


def main() -> None:
    results: dict[str, object] = {"busy": "", "denied": "", "gone": ""}
    for fault in results:
        (FAULTS / fault).touch()
        results[fault] = refusal()
        (FAULTS / fault).unlink()
    results["mode"] = refusal(camera_mode="640x480:mjpeg")
    (FAULTS / "hang").touch()
    results["hang"] = refusal(open_timeout_s=0.3)
    (FAULTS / "hang").unlink()
    with opened(CAMERA, stall_s=1.5, camera_mode="640x480:yuyv422", fps=30.0) as source:
        info, reading = source.describe(), Reading(source)
        results["info"] = [info.name, info.width_px, info.height_px, info.fps, info.live, info.codec]
        frames = reading.frames(15)
        results["rise"] = all(a.capture_ns < b.capture_ns for a, b in itertools.pairwise(frames))
        outages = []
        for fault in ("hang", "gone"):
            (FAULTS / fault).touch()
            outages.append(reading.lost().reason)
            (FAULTS / fault).unlink()
            reading.back()
            outages.append(reading.frames(1)[0].discontinuity)
        results["outages"] = outages
        (FAULTS / "hang").touch()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
