"""What a texture update costs a frame, beside converting the whole frame and building the whole pyramid.

    python -m benchmarks.texture [--rounds N] [--out FILE]

Frames are 1920×1080, 4:2:0, BT.709. Between two frames 0, 1, 10, 50 and 100 % of the tiles change, in one block or
scattered; "noise" adds noise of standard deviation 2 everywhere, which stays below the thresholds. An update is
comparing, converting, storing and halving. The peer is swscale (PyAV's `to_ndarray`) for the whole frame, then padding
and cv2's whole box pyramid into memory made beforehand. Both see the same frames by turns, in the same process.
Targets (no noise): at most 0.3 ms and a tenth of the peer's time at 0 %, 0.7 ms and a quarter at 10 % in one block.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace

from arr_coc.ops.planes import PlaneFormat
from arr_coc.ops.store import open_store
from arr_coc.types import LEVELS, TILE_PX, Colour, FramePlanes, FrameStamp, TileGrid
from stream.bench.machine import machine

RESULTS = Path(__file__).parent / "results" / "texture.json"
GRID = TileGrid.of(1080, 1920)
PICTURES = 4
"""Frames that take turns: more than a core's own cache holds, as from a decoder's pool."""

UPDATES_A_ROUND, PEERS_A_ROUND = 12, 3

Mask = npt.NDArray[np.bool_]
Plane = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Case:
    """How two frames differ, and the targets: milliseconds, and how many times faster than the peer."""

    name: str
    share: float
    scattered: bool = False
    noise: float = 0.0
    target_ms: float | None = None
    target_ratio: float | None = None


CASES = (
    Case("0 %", 0.0, target_ms=0.3, target_ratio=10),
    Case("0 %, noise", 0.0, noise=2.0),
    Case("1 %, one block", 0.01),
    Case("1 %, scattered", 0.01, scattered=True),
    Case("10 %, one block", 0.10, target_ms=0.7, target_ratio=4),
    Case("10 %, one block, noise", 0.10, noise=2.0),
    Case("10 %, scattered", 0.10, scattered=True),
    Case("50 %, one block", 0.50),
    Case("50 %, scattered", 0.50, scattered=True),
    Case("100 %", 1.0),
)


def changing_tiles(case: Case) -> Mask:
    """Which tiles differ between one frame and the next: bool [rows, cols]."""
    count = round(case.share * GRID.tiles)
    mask = np.zeros(GRID.shape, bool)
    if case.scattered:
        mask.flat[np.random.default_rng(0).permutation(GRID.tiles)[:count]] = True
    elif count:
        rows = min(GRID.rows, round((count * GRID.rows / GRID.cols) ** 0.5))
        cols = min(GRID.cols, round(count / rows))
        top, left = (GRID.rows - rows) // 2, (GRID.cols - cols) // 2
        mask[top : top + rows, left : left + cols] = True
    return mask


def make_frames(case: Case) -> list[av.VideoFrame]:
    """A still picture of clutter, in which the changing tiles alternate between two brightnesses."""
    rng = np.random.default_rng(1)
    shapes = ((GRID.height_px, GRID.width_px), *[(GRID.height_px // 2, GRID.width_px // 2)] * 2)
    base = [cv2.GaussianBlur(rng.integers(0, 256, shape).astype(np.float32), (0, 0), 4) for shape in shapes]
    still = [cv2.normalize(plane, None, 40, 200, cv2.NORM_MINMAX) for plane in base]
    tiles = changing_tiles(case)
    frames = []
    for index in range(PICTURES):
        frame = av.VideoFrame(GRID.width_px, GRID.height_px, "yuv420p")
        frame.colorspace, frame.color_range = Colorspace.ITU709, ColorRange.MPEG
        for number, (source, target) in enumerate(zip(still, frame.planes, strict=True)):
            side = TILE_PX if number == 0 else TILE_PX // 2
            mask = tiles.repeat(side, axis=0).repeat(side, axis=1)[: source.shape[0], : source.shape[1]]
            shown = source + 24 * (index % 2) * mask + rng.normal(0, case.noise, source.shape)
            samples = np.frombuffer(target, np.uint8).reshape(-1, target.line_size)
            samples[:, : source.shape[1]] = np.clip(np.rint(shown), 0, 255)
        frames.append(frame)
    return frames


def planes_of(frame: av.VideoFrame) -> FramePlanes:
    planes = tuple(
        np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]
        for plane in frame.planes
    )
    return FramePlanes("yuv", planes, Colour("bt709"), owner=frame)


class WholeFrame:
    """The peer."""

    def __init__(self) -> None:
        size = (GRID.padded_height_px, GRID.padded_width_px)
        self._levels = [np.empty((size[0] >> level, size[1] >> level, 3), np.uint8) for level in range(LEVELS)]

    def update(self, frame: av.VideoFrame) -> None:
        rgb = frame.to_ndarray(format="rgb24")
        level0 = self._levels[0]
        bottom, right = level0.shape[0] - rgb.shape[0], level0.shape[1] - rgb.shape[1]
        cv2.copyMakeBorder(rgb, 0, bottom, 0, right, cv2.BORDER_REPLICATE, dst=level0)
        for fine, coarse in zip(self._levels[:-1], self._levels[1:], strict=True):
            cv2.resize(fine, coarse.shape[1::-1], dst=coarse, interpolation=cv2.INTER_AREA)


def measured(case: Case, rounds: int) -> dict[str, Any]:
    frames = make_frames(case)
    pictures = [planes_of(frame) for frame in frames]
    store, peer = open_store(PlaneFormat.of(pictures[0])), WholeFrame()
    store.update(pictures[-1], FrameStamp(0, 0, 0))
    marks: list[tuple[int, int, int]] = []
    peer_ms: list[float] = []
    dirty: list[float] = []
    for turn in range(rounds * UPDATES_A_ROUND):
        planes = pictures[turn % PICTURES]
        start_ns = time.perf_counter_ns()
        difference = store.compare(planes)
        compared_ns = time.perf_counter_ns()
        store.write(planes, difference, FrameStamp(turn, 0, 0))
        marks.append((start_ns, compared_ns, time.perf_counter_ns()))
        dirty.append(difference.dirty_share)
        if turn % UPDATES_A_ROUND == UPDATES_A_ROUND - 1:
            for frame in frames[:PEERS_A_ROUND]:
                start_ns = time.perf_counter_ns()
                peer.update(frame)
                peer_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
    update_ms = [(end - start) / 1e6 for start, _, end in marks]
    return {
        "case": case.name,
        "dirty_share": round(statistics.mean(dirty), 4),
        "update_ms": summary(update_ms),
        "compare_ms": summary([(compared - start) / 1e6 for start, compared, _ in marks]),
        "write_ms": summary([(end - compared) / 1e6 for _, compared, end in marks]),
        "whole_frame_ms": summary(peer_ms),
        "times_faster": round(statistics.median(peer_ms) / statistics.median(update_ms), 2),
        "target_ms": case.target_ms,
        "target_times_faster": case.target_ratio,
    }


def summary(times_ms: list[float]) -> dict[str, float]:
    quantiles = {"min": min(times_ms), "p50": statistics.median(times_ms), "p95": float(np.percentile(times_ms, 95))}
    return {name: round(value, 4) for name, value in quantiles.items()}


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        f"{'tiles changed':24}{'update ms':>11}{'p95':>8}{'compare':>9}{'write':>8}{'whole frame':>13}{'faster':>8}"
    ]
    for row in results:
        faster = f"{row['times_faster']:.1f}x"
        lines.append(
            f"{row['case']:24}{row['update_ms']['p50']:11.3f}{row['update_ms']['p95']:8.3f}"
            f"{row['compare_ms']['p50']:9.3f}{row['write_ms']['p50']:8.3f}{row['whole_frame_ms']['p50']:13.3f}{faster:>8}"
        )
        if row["target_ms"] is not None:
            lines[-1] += f"   (targets: {row['target_ms']} ms, {row['target_times_faster']}x)"
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=25, help=f"rounds of {UPDATES_A_ROUND} updates a case")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    cv2.setNumThreads(2)
    results = [measured(case, arguments.rounds) for case in CASES]
    print(table(results))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"benchmark": "texture", "machine": machine() | {"cv2_threads": cv2.getNumThreads()}, "cases": results}
    arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
