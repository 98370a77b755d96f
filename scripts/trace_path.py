"""Count the project's files that one frame runs through, from its capture to its WebVTT cue, and one answer alone.

`python scripts/trace_path.py [--list]` captions a drawn scene in one process and records every call of project code
between two points: the source hands over a frame, and the cue of the next answer is complete. A file counts if it runs
for every one of several frames, so not if a timer or the garbage collector happens to call it. The drawing of the scene
is left out. The answer's own path is the part of it in the modules that a request and its reply cross.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("stream", "arr_coc")
DRAWING = "stream/scenes/"
SOURCE = ("stream/sources/scene.py", "frames")
CUE = ("stream/sinks/captions.py", "answer")
ANSWER_PATH = (
    "stream/stages/allocate.py",
    "stream/answer/",
    "stream/protocol/messages.py",
    "stream/protocol/codec.py",
    "stream/transport/links.py",
)
FIRST_ANSWERS = 2
"""Answers before the recording begins: by then nothing is met for the first time."""
FRAMES = 3


class PathRecorder:
    """Project files and calls between them from the capture of a frame to the cue of the next answer, for each of some
    frames. A profile function."""

    def __init__(self) -> None:
        self._paths: list[tuple[set[str], set[tuple[str, str]]]] = []
        self._cues = 0
        self._recording = False
        self._names: dict[str, str] = {}

    @property
    def frames(self) -> int:
        """Number of recorded frames."""
        return len(self._paths)

    @property
    def files(self) -> set[str]:
        """Files on the path of every recorded frame."""
        return set.intersection(*(files for files, _ in self._paths))

    @property
    def calls(self) -> set[tuple[str, str]]:
        """Callers and called files on the path of every recorded frame."""
        return set.intersection(*(calls for _, calls in self._paths))

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        file, name = self._file_of(frame), frame.f_code.co_name
        if (file, name) == CUE:
            self._cues += 1
            self._recording = False
        elif (file, name) == SOURCE and self._cues == FIRST_ANSWERS + len(self._paths) and len(self._paths) < FRAMES:
            self._recording = True
            self._paths.append((set(), set()))
        if not self._recording or not file or file.startswith(DRAWING):
            return
        files, calls = self._paths[-1]
        files.add(file)
        caller = self._file_of(frame.f_back) if frame.f_back is not None else ""
        if caller and caller != file and not caller.startswith(DRAWING):
            calls.add((caller, file))

    def _file_of(self, frame: FrameType) -> str:
        name = frame.f_code.co_filename
        if name not in self._names:
            path = Path(name)
            is_traced = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGES
            self._names[name] = path.relative_to(ROOT).as_posix() if is_traced else ""
        return self._names[name]


def record() -> PathRecorder:
    """Caption a drawn scene in one process, recorded."""
    from stream.cli import main

    recorder = PathRecorder()
    with tempfile.TemporaryDirectory() as folder:
        outputs = ["-o", f"{folder}/cues.vtt", "--duration", "3", "--every", "0.5", "--single-process"]
        threading.setprofile(recorder)
        sys.setprofile(recorder)
        try:
            status = main(["caption", "scene:demo", *outputs])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    if status or recorder.frames < FRAMES:
        raise SystemExit(f"the run ended with status {status}, and {recorder.frames} frames were recorded")
    return recorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="also print the files")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    recorder = record()
    lines = sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in recorder.files)
    parts = " + ".join(f"{sum(f.startswith(p + '/') for f in recorder.files)} of {p}" for p in PACKAGES)
    print(
        f"one frame to its cue: {len(recorder.files)} files ({parts}), {lines} lines,"
        f" {len(recorder.calls)} calls between files"
    )
    answer = sorted(file for file in recorder.files if file.startswith(ANSWER_PATH))
    print(f"its answer alone: {len(answer)} files")
    for file in sorted(recorder.files) if arguments.list else answer:
        print(f"  {file}")


if __name__ == "__main__":
    main()
