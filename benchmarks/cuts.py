"""How well scene cuts are found in real clips, beside PySceneDetect on the same frames.

    python -m benchmarks.cuts [--clips FOLDER] [--out FILE]

FOLDER holds clips and a `manifest.json` with each clip's `hard_cut_first_frame`: decode indices of new shots' first
frames, read off by eye. A found cut within one frame of a true one is right, once. The peers are PySceneDetect's
ContentDetector and AdaptiveDetector with their defaults except that scenes may be one frame long; they get every frame
in BGR from the same decoder. AdaptiveDetector looks two frames ahead. Needs `pip install scenedetect`.
Target: every hard cut found, no false one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import cv2

from arr_coc.types import FrameStamp
from arr_coc.updater import TextureUpdater
from stream.sources.planes import planes_of

try:
    import scenedetect
    from scenedetect import AdaptiveDetector, ContentDetector, FrameTimecode
except ImportError as error:
    raise SystemExit("the peers are PySceneDetect's detectors: pip install scenedetect") from error

RESULTS = Path(__file__).parent / "results" / "cuts.json"
CLIPS = Path(os.environ.get("ARR_COC_CLIPS", Path(__file__).resolve().parents[2] / "shared" / "clips"))
TOLERANCE_FRAMES = 1


@dataclass
class Score:
    """Counts over all clips."""

    right: int = 0
    false: int = 0
    missed: int = 0
    mistakes: list[dict[str, Any]] = field(default_factory=list)

    def add(self, clip: str, found: list[int], true: list[int]) -> None:
        """Pairs found with true cuts, each at most once, nearest first in time."""
        missed = list(true)
        false = []
        for cut in found:
            near = [other for other in missed if abs(other - cut) <= TOLERANCE_FRAMES]
            if near:
                missed.remove(near[0])
            else:
                false.append(cut)
        self.right += len(true) - len(missed)
        self.false += len(false)
        self.missed += len(missed)
        if false or missed:
            self.mistakes.append({"clip": clip, "false": false, "missed": missed})

    @property
    def report(self) -> dict[str, Any]:
        found, true = self.right + self.false, self.right + self.missed
        precision, recall = self.right / max(1, found), self.right / max(1, true)
        return {
            "right": self.right,
            "false": self.false,
            "missed": self.missed,
            "precision": round(precision, 4),
            "recall": round(recall, 4),
            "f1": round(2 * self.right / max(1, found + true), 4),
            "mistakes": self.mistakes,
        }


def decoded(path: Path) -> Iterator[av.VideoFrame]:
    """The frames of the first video stream; packets that do not decode are skipped."""
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            try:
                yield from packet.decode()
            except av.error.InvalidDataError:
                continue


def texture_cuts(path: Path) -> list[int]:
    updater = TextureUpdater()
    updates = (updater.process(planes_of(frame), FrameStamp(index, 0, 0)) for index, frame in enumerate(decoded(path)))
    return [update.change.stamp.frame_index for update in updates if update.cut.is_cut]


def peer_cuts(detector: Any, path: Path) -> list[int]:
    """What one of PySceneDetect's detectors finds. Times are made from decode indices, as 30 frames a second."""
    found: list[Any] = []
    size: tuple[int, int] | None = None
    time = None
    for index, frame in enumerate(decoded(path)):
        size = size or (frame.width, frame.height)
        picture = frame.to_ndarray(format="bgr24")
        if (frame.width, frame.height) != size:
            picture = cv2.resize(picture, size, interpolation=cv2.INTER_LINEAR)
        time = FrameTimecode(index, fps=30.0)
        found += detector.process_frame(time, picture)
    if time is not None:
        found += detector.post_process(time)
    return sorted({int(cut.frame_num) for cut in found})


def detectors() -> dict[str, Callable[[Path], list[int]]]:
    return {
        "arr_coc": texture_cuts,
        "ContentDetector": lambda path: peer_cuts(ContentDetector(), path),
        "AdaptiveDetector": lambda path: peer_cuts(AdaptiveDetector(), path),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clips", type=Path, default=CLIPS, help="folder with a manifest.json")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    manifest = arguments.clips / "manifest.json"
    if not manifest.is_file():
        raise SystemExit(f"{manifest} does not exist: name a folder of clips with --clips or $ARR_COC_CLIPS")
    clips = json.loads(manifest.read_text(encoding="utf-8"))
    scores = {name: Score() for name in detectors()}
    for clip in clips:
        for name, find in detectors().items():
            scores[name].add(clip["file"], find(arguments.clips / clip["file"]), clip["hard_cut_first_frame"])
    print(f"{'':18}{'right':>7}{'false':>7}{'missed':>8}{'F1':>7}")
    for name, score in scores.items():
        print(f"{name:18}{score.right:7}{score.false:7}{score.missed:8}{score.report['f1']:7.3f}")
    report = {
        "benchmark": "cuts",
        "tolerance_frames": TOLERANCE_FRAMES,
        "clips": [clip["file"] for clip in clips],
        "versions": {
            "python": platform.python_version(),
            "cv2": cv2.__version__,
            "scenedetect": scenedetect.__version__,
        },
        "detectors": {name: score.report for name, score in scores.items()},
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
