"""Scores of scene-cut detection, beside PySceneDetect on the same frames.

    python -m benchmarks.cuts [--clips FOLDER] [--per-kind N] [--out FILE]

Two sorts of clips. Real ones: FOLDER holds clips and a `manifest.json` with each clip's `hard_cut_first_frame`, decode
indices of new shots' first frames, read off by eye. And clips made in memory (`benchmarks/support/cut_material.py`),
in a part that the detector was tuned on and a held-out part, of other seeds, other real clips and with other kinds of
events besides. If FOLDER is absent the real clips are left out, and clips are made of drawn pictures only.

A found cut within one frame of a true one is right, once. The peers are PySceneDetect's ContentDetector and
AdaptiveDetector with their defaults except that scenes may be one frame long; they get every frame in BGR.
AdaptiveDetector looks two frames ahead. Needs `pip install scenedetect`. Target: F1 of 0.95 on the held-out part.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import FramePlanes, FrameStamp
from arr_coc.video.cuts import SceneCutDetector
from arr_coc.video.motion import Thumbnail
from arr_coc.video.texture_updater import TextureUpdater
from benchmarks.support.clips import CLIPS, described_clips
from benchmarks.support.cut_grounds import Part, decode_frames
from benchmarks.support.cut_material import HELD_OUT_KINDS, material, planes_of_rgb
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine
from stream.sources.planes import planes_of

try:
    import scenedetect
    from scenedetect import AdaptiveDetector, ContentDetector, FrameTimecode
except ImportError as error:
    raise SystemExit("the peers are PySceneDetect's detectors: pip install scenedetect") from error

RESULTS = Path(__file__).parent / "results" / "cuts.json"
TOLERANCE_FRAMES = 1

Picture = npt.NDArray[np.uint8]
Finder = Callable[[int, FramePlanes, Picture], list[int]]
"""A detector at work: the index, planes and BGR picture of the next frame → the cuts that it then knows of."""


@dataclass
class Score:
    """Hits, misses and false cuts over all clips."""

    right: int = 0
    false: int = 0
    misses: int = 0
    mistakes: list[dict[str, Any]] = field(default_factory=list)

    def add(self, clip: str, detections: list[int], true: list[int]) -> None:
        """Pairs found with true cuts, each at most once, nearest first in time."""
        misses = list(true)
        false = []
        for cut in detections:
            matches = [other for other in misses if abs(other - cut) <= TOLERANCE_FRAMES]
            if matches:
                misses.remove(matches[0])
            else:
                false.append(cut)
        self.right += len(true) - len(misses)
        self.false += len(false)
        self.misses += len(misses)
        if false or misses:
            self.mistakes.append({"clip": clip, "false": false, "missed": misses})

    @property
    def line(self) -> str:
        return f"{self.right} {self.false} {self.misses}; {self.counts['f1']:.3f}"

    @property
    def report(self) -> dict[str, Any]:
        return {**self.counts, "mistakes": self.mistakes}

    @property
    def counts(self) -> dict[str, float]:
        detections, true = self.right + self.false, self.right + self.misses
        precision, recall = self.right / max(1, detections), self.right / max(1, true)
        return {
            "right": self.right,
            "false": self.false,
            "missed": self.misses,
            "precision": round(precision, 4),
            "recall": round(recall, 4),
            "f1": round(2 * self.right / max(1, detections + true), 4),
        }


def texture_finder() -> Finder:
    updater = TextureUpdater()

    def find(index: int, planes: FramePlanes, _: Picture) -> list[int]:
        return [index] if updater.process(planes, FrameStamp(index, 0, 0)).cut.is_cut else []

    return find


def peer_finder(detector: Any) -> Finder:
    """One of PySceneDetect's detectors. Times are made from indices, as 30 frames a second."""
    size: tuple[int, int] | None = None

    def find(index: int, _: FramePlanes, picture: Picture) -> list[int]:
        nonlocal size
        size = size or (picture.shape[1], picture.shape[0])
        if (picture.shape[1], picture.shape[0]) != size:
            picture = np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_LINEAR), np.uint8)
        return [int(cut.frame_num) for cut in detector.process_frame(FrameTimecode(index, fps=30.0), picture)]

    return find


DETECTORS: dict[str, Callable[[], Finder]] = {
    "arr_coc": texture_finder,
    "ContentDetector": lambda: peer_finder(ContentDetector(min_scene_len=1)),
    "AdaptiveDetector": lambda: peer_finder(AdaptiveDetector(min_scene_len=1)),
}


def found_cuts(frames: Iterable[tuple[FramePlanes, Picture]]) -> dict[str, list[int]]:
    """Cuts that every detector finds in the same frames, given as planes and as BGR."""
    finders = {name: make() for name, make in DETECTORS.items()}
    detections: dict[str, set[int]] = {name: set() for name in finders}
    for index, (planes, picture) in enumerate(frames):
        for name, find in finders.items():
            detections[name].update(find(index, planes, picture))
    return {name: sorted(cuts) for name, cuts in detections.items()}


def of_real_clips(folder: Path, clips: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Every detector's score on the folder's clips, which its manifest describes."""
    scores = {name: Score() for name in DETECTORS}
    for clip in clips:
        frames = (
            (planes_of(frame), frame.to_ndarray(format="bgr24")) for frame in decode_frames(folder / clip["file"])
        )
        for name, cuts in found_cuts(frames).items():
            scores[name].add(clip["file"], cuts, clip["hard_cut_first_frame"])
    _show("real clips", scores)
    detectors = {name: score.report for name, score in scores.items()}
    return {"clips": [clip["file"] for clip in clips], "detectors": detectors}


def of_material(part: Part, folder: Path, per_kind: int) -> dict[str, Any]:
    """Every detector's score on one part of the clips made in memory: of all, by kind, and by what they are made of."""
    groups: dict[str, dict[str, Score]] = {}
    clips = 0
    for clip in material(part, folder, per_kind):
        clips += 1
        detections = found_cuts((planes_of_rgb(frame), np.ascontiguousarray(frame[..., ::-1])) for frame in clip.frames)
        novelty = "kinds that tuning never saw" if clip.kind in HELD_OUT_KINDS else "kinds as in tuning"
        for group in ("all", novelty, f"over {clip.sort}", clip.kind):
            scores = groups.setdefault(group, {name: Score() for name in DETECTORS})
            for name, cuts in detections.items():
                scores[name].add(f"{clip.kind} over {clip.base}", cuts, clip.cuts)
    for group in groups:
        _show(f"{part}: {group}", groups[group])
    tables = {group: {name: score.counts for name, score in scores.items()} for group, scores in groups.items()}
    return {"clips": clips, "groups": tables, "mistakes": groups["all"]["arr_coc"].mistakes}


def cost_ms(repeats: int = 40) -> dict[str, float]:
    """Median processor time of judging a 1080p frame that changed all over: one that stands out from the frames before
    it and goes through everything, and one that does not."""
    rng = np.random.default_rng(0)
    pictures = [cv2.GaussianBlur(rng.integers(0, 256, (1080, 1920), dtype=np.uint8), (0, 0), 16) for _ in range(2)]
    planes = [
        FramePlanes("gray", (cv2.normalize(p, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8),)) for p in pictures
    ]
    spent: dict[str, list[float]] = {"stands out": [], "does not": []}
    for _ in range(repeats):
        before, after = Thumbnail.of(planes[0]), Thumbnail.of(planes[1])
        detector = SceneCutDetector()
        for name in spent:
            start_ns = time.process_time_ns()
            detector.judge(before, after, 1.0)
            spent[name].append((time.process_time_ns() - start_ns) / 1e6)
            detector.advance(before, after)
    return {name: round(statistics.median(values), 2) for name, values in spent.items()}


def _show(title: str, scores: dict[str, Score]) -> None:
    print(f"{title:48}" + "".join(f"{name:>18}" for name in scores))
    print(f"{'  right, false, missed; F1':48}" + "".join(f"{score.line:>18}" for score in scores.values()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clips", type=Path, default=CLIPS, help="folder with a manifest.json")
    parser.add_argument("--per-kind", type=int, default=6, help="clips made of each kind")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "benchmark": "cuts",
        "tolerance_frames": TOLERANCE_FRAMES,
        "machine": machine(),
        "versions": {"scenedetect": scenedetect.__version__},
        "cost_ms": cost_ms(),
    }
    parts: tuple[Part, ...] = ("held-out", "tuning")
    for part in parts:
        report[part] = of_material(part, arguments.clips, arguments.per_kind)
    if clips := described_clips(arguments.clips):
        report["real"] = of_real_clips(arguments.clips, clips)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, report)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
