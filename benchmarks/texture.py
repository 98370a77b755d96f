"""`python -m benchmarks.texture`.

    python -m benchmarks.texture [--rounds N] [--sizes 720p 1080p 4K] [--stores cpu gl cuda] [--out FILE] [--png FILE]

Frames are 4:2:0, BT.709, at 720p, 1080p and 4K. Between two frames 0, 1, 10, 50 and 100 % of the tiles change, in one
block or scattered; "noise" adds noise of standard deviation 2 everywhere, which stays below the thresholds. An *update*
is comparing, converting, storing and halving, until the device has done it. *Upload and mipmaps* is the same for RGB
frames whose changed tiles are known, which leaves out comparing and converting. *Gather* fetches 273 regions of all
levels into ordinary memory.

*Level 0* is reading that level whole afterwards, which the CPU store makes of the tiles that changed since the last
time; an update and it together do what the peer does.

The peer of an update is swscale (PyAV's `to_ndarray`) for the whole frame, then padding and cv2's whole box pyramid
into memory made beforehand. The peers of upload and mipmaps are in `texture_peers`. All take turns in one process.
Updating scattered tiles one by one costs more than the whole frame from some share on: *crossing* finds it,
beside what the store does, which is to notice.

Targets (1080p, no noise). CPU store, update: at 0 % at most 1.15 times what memcmp of two such frames takes; at 10 % 4
times faster than the peer in one block and 3 times scattered, at 100 % 1.2 times; and at 10 % a fifth of what 100 %
takes. Upload and mipmaps at 10 % in one block: at most 0.3 ms on the CPU store, 1.2 ms in software OpenGL; and nowhere
more than 1.2 times what everything takes. Gather: 0.17 ms on the CPU store.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import torch

from arr_coc.backends.registry import open_store, probe_backend
from arr_coc.errors import StoreError
from arr_coc.texture.store.base import Backend, TextureStore
from arr_coc.texture.store.planes import Difference, PlaneFormat
from arr_coc.types import LEVELS, FramePlanes, FrameStamp, TileGrid
from benchmarks.support.harness import write_report
from benchmarks.support.texture_frames import (
    CASES,
    NOISY,
    SIZES,
    BothFrames,
    TextureCase,
    WholeFrame,
    changing_tiles,
    make_frames,
    peers,
    planes_of,
    rgb_of,
)
from benchmarks.support.texture_report import plot, summary, table, target_rows
from stream.monitor.machine import machine

SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)

WAYS = ("one by one", "as the store does it", "whole frame")


def crossing(
    backend: Backend,
    pictures: Sequence[FramePlanes],
    finisher: Callable[[TextureStore], Callable[[], None]],
    turns: int,
) -> dict[str, Any]:
    """Medians in ms of upload and mipmaps of RGB frames, three ways, and the share from which the first loses.

    Args:
        backend: Backend of the store.
        pictures: RGB frames, written in turns.
        finisher: Makes the function that waits for the store's work.
        turns: Writes of each way at each share.
    """
    fmt = PlaneFormat.of(pictures[0])
    store = open_store(fmt, backend)
    finish = finisher(store)
    store.update(pictures[0], FrameStamp(0, 0, 0))
    rows = []
    for share in SHARES:
        some = Difference(changing_tiles(TextureCase(share, scattered=True), fmt.grid))
        took_ms: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(turns):
            for way in WAYS:
                difference = Difference.everywhere(fmt.grid) if way == "whole frame" else some
                with one_by_one(store) if way == "one by one" else nullcontext():
                    start_ns = time.perf_counter_ns()
                    store.write(pictures[turn % len(pictures)], difference, FrameStamp(turn, 0, 0))
                    finish()
                    took_ms[way].append((time.perf_counter_ns() - start_ns) / 1e6)
        rows.append({"share": share, **{way: round(statistics.median(times), 4) for way, times in took_ms.items()}})
    store.close()
    return {"store": backend, "grid": list(fmt.grid.shape), "crosses_at_share": crosses_at(rows), "shares": rows}


def crosses_at(rows: Sequence[dict[str, float]]) -> float | None:
    """The share at which one by one begins to cost more than the whole frame; None if it never does.

    Between two measured shares, a straight line of logarithms.
    """
    excess = [math.log(row["one by one"] / row["whole frame"]) for row in rows]
    for index, value in enumerate(excess):
        if value > 0:
            if index == 0:
                return rows[0]["share"]
            before, after = rows[index - 1]["share"], rows[index]["share"]
            part = -excess[index - 1] / (value - excess[index - 1])
            return round(before * (after / before) ** part, 4)
    return None


@contextmanager
def one_by_one(store: TextureStore) -> Iterator[None]:
    """The store uploads every rectangle by itself, whatever that costs. Others than OpenGL's always do."""
    if store.backend == "gl":
        store.way = "parts"  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if store.backend == "gl":
            store.way = None  # type: ignore[attr-defined]


RESULTS = Path(__file__).parent / "results"
STORES: tuple[Backend, ...] = ("cpu", "gl", "cuda")

UPDATES_A_ROUND, PEERS_A_ROUND = 12, 3
GATHERED = 273


@dataclass
class Contender:
    """A store for 4:2:0 frames and one for RGB frames, and what they took in milliseconds."""

    name: str
    yuv: TextureStore
    rgb: TextureStore
    finish: Callable[[], None]
    compare_ms: list[float] = field(default_factory=list)
    update_ms: list[float] = field(default_factory=list)
    mips_ms: list[float] = field(default_factory=list)
    gather_ms: list[float] = field(default_factory=list)
    level0_ms: list[float] = field(default_factory=list)
    dirty: list[float] = field(default_factory=list)

    @classmethod
    def open(cls, name: Backend, yuv: FramePlanes, rgb: FramePlanes) -> Contender:
        stores = [open_store(PlaneFormat.of(planes), name) for planes in (yuv, rgb)]
        for store, planes in zip(stores, (yuv, rgb), strict=True):
            store.update(planes, FrameStamp(0, 0, 0))
        return cls(name, *stores, finish=finisher(stores[1]))

    def update(self, planes: FramePlanes, turn: int) -> None:
        start_ns = time.perf_counter_ns()
        difference = self.yuv.compare(planes)
        compared_ns = time.perf_counter_ns()
        self.yuv.write(planes, difference, FrameStamp(turn, 0, 0))
        self.finish()
        self.update_ms.append(since_ms(start_ns))
        self.compare_ms.append((compared_ns - start_ns) / 1e6)
        self.dirty.append(difference.dirty_share)
        with self.yuv.lease() as view:
            start_ns = time.perf_counter_ns()
            view.read(0)
            self.level0_ms.append(since_ms(start_ns))

    def upload(self, planes: FramePlanes, difference: Difference, turn: int) -> None:
        start_ns = time.perf_counter_ns()
        self.rgb.write(planes, difference, FrameStamp(turn, 0, 0))
        self.finish()
        self.mips_ms.append(since_ms(start_ns))

    def gather(self, regions: np.ndarray) -> None:
        with self.rgb.lease() as view:
            start_ns = time.perf_counter_ns()
            view.gather(regions)
            self.gather_ms.append(since_ms(start_ns))

    def close(self) -> None:
        self.yuv.close()
        self.rgb.close()


def since_ms(start_ns: int) -> float:
    return (time.perf_counter_ns() - start_ns) / 1e6


def finisher(store: TextureStore) -> Callable[[], None]:
    """A function that waits until the device has done all its work."""
    if store.backend == "cuda":
        return torch.cuda.synchronize
    if store.backend == "gl":
        device = store.device  # type: ignore[attr-defined]

        def finish() -> None:
            with device.current():
                device.library.gl.glFinish()

        return finish
    return lambda: None


def regions_of(grid: TileGrid, count: int) -> np.ndarray:
    """Regions [count, 3] of all levels, most of them fine, as a quadtree chooses them."""
    rng = np.random.default_rng(2)
    levels = rng.choice(LEVELS, count, p=(0.4, 0.3, 0.15, 0.1, 0.04, 0.01))
    rows, cols = ((size + (1 << levels) - 1) >> levels for size in grid.shape)
    return np.stack([levels, rng.integers(0, rows), rng.integers(0, cols)], axis=1)


def measure_stores(size: str, case: TextureCase, stores: tuple[Backend, ...], rounds: int) -> list[dict[str, Any]]:
    """A row for each store.

    Args:
        size: One of SIZES.
        case: Which tiles change.
        stores: Backends, which take turns.
        rounds: Rounds of updates.
    """
    grid = SIZES[size]
    frames = make_frames(case, grid)
    yuv, rgb = [planes_of(frame) for frame in frames], [rgb_of(frame) for frame in frames]
    contenders = [Contender.open(name, yuv[-1], rgb[-1]) for name in stores]
    difference, regions = Difference(changing_tiles(case, grid)), regions_of(grid, GATHERED)
    peer, peer_ms = WholeFrame(grid), list[float]()
    both_frames, both_ms = BothFrames(grid), list[float]()
    for turn in range(rounds * UPDATES_A_ROUND):
        for contender in contenders:
            contender.update(yuv[turn % len(yuv)], turn)
            contender.upload(rgb[turn % len(rgb)], difference, turn)
            if turn % 2:
                contender.gather(regions)
        both_ms.append(timed_ms(both_frames.read, turn))
        if turn % UPDATES_A_ROUND == UPDATES_A_ROUND - 1:
            peer_ms += [timed_ms(peer.update, frame) for frame in frames[:PEERS_A_ROUND]]
    for contender in contenders:
        contender.close()
    return [row(size, case, contender, peer_ms, both_ms) for contender in contenders]


def row(
    size: str, case: TextureCase, contender: Contender, peer_ms: list[float], both_ms: list[float]
) -> dict[str, Any]:
    """The row of one store.

    Args:
        size: One of SIZES.
        case: Which tiles change.
        contender: The store's times.
        peer_ms: Times of an upload of the whole frame by the peer.
        both_ms: Times of reading two frames once.
    """
    targeted = size == "1080p" and contender.name == "cpu"
    whole_ms = [update + level0 for update, level0 in zip(contender.update_ms, contender.level0_ms, strict=True)]
    writes_ms = [update - compare for update, compare in zip(contender.update_ms, contender.compare_ms, strict=True)]
    return {
        "case": case.name,
        "size": size,
        "store": contender.name,
        "share": case.share,
        "scattered": case.scattered,
        "noise": case.noise,
        "dirty_share": round(statistics.mean(contender.dirty), 4),
        "update_ms": summary(contender.update_ms),
        "compare_ms": summary(contender.compare_ms),
        "write_ms": summary(writes_ms),
        "mips_ms": summary(contender.mips_ms),
        "gather_ms": summary(contender.gather_ms),
        "level0_ms": summary(contender.level0_ms),
        "whole_frame_ms": summary(peer_ms),
        "times_faster": round(statistics.median(peer_ms) / statistics.median(contender.update_ms), 2),
        "times_faster_with_level0": round(statistics.median(peer_ms) / statistics.median(whole_ms), 2),
        "read_both_ms": summary(both_ms),
        "times_reading": round(statistics.median(contender.update_ms) / statistics.median(both_ms), 2),
        "target_times_faster": case.target_ratio if targeted else None,
        "target_times_reading": case.target_reads if targeted else None,
    }


def timed_ms(work: Callable[[Any], object], argument: object) -> float:
    start_ns = time.perf_counter_ns()
    work(argument)
    return since_ms(start_ns)


def measure_peers(size: str, rounds: int) -> list[dict[str, Any]]:
    """By turns, so that a busy moment of the machine falls on all of them."""
    grid = SIZES[size]
    level0 = pad_frame(make_frames(TextureCase(0.0), grid)[0], grid)
    contenders = list(peers(grid))
    times_ms: dict[str, list[float]] = {peer.name: [] for peer in contenders}
    for turn in range(rounds + 1):
        for peer in contenders:
            took_ms = timed_ms(peer.run, level0)
            if turn:
                times_ms[peer.name].append(took_ms)
    return [{"size": size, "peer": name, "whole_ms": summary(times)} for name, times in times_ms.items()]


def pad_frame(frame: av.VideoFrame, grid: TileGrid) -> np.ndarray:
    rgb = frame.to_ndarray(format="rgb24")
    bottom, right = grid.padded_height_px - rgb.shape[0], grid.padded_width_px - rgb.shape[1]
    return cv2.copyMakeBorder(rgb, 0, bottom, 0, right, cv2.BORDER_REPLICATE)


def stores_here(names: list[str]) -> tuple[Backend, ...]:
    """The wanted stores that work here; reports why another one does not."""
    stores = []
    for name in STORES:
        if name in names:
            try:
                probe_backend(name)
                stores.append(name)
            except StoreError as error:
                print(f"without {name}: {error}")
    return tuple(stores)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help=f"rounds of {UPDATES_A_ROUND} updates a case")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--out", type=Path, default=RESULTS / "texture.json")
    parser.add_argument("--png", type=Path, default=RESULTS / "texture.png")
    arguments = parser.parse_args()
    cv2.setNumThreads(2)
    torch.set_num_threads(2)
    stores = stores_here(arguments.stores)
    cases, others = list[dict[str, Any]](), list[dict[str, Any]]()
    for size in arguments.sizes:
        for case in CASES + (NOISY if size == "1080p" else ()):
            cases += measure_stores(size, case, stores, arguments.rounds)
        others += measure_peers(size, max(3, arguments.rounds // 5))
    changing = [rgb_of(frame) for frame in make_frames(TextureCase(1.0), SIZES["1080p"])]
    report = {
        "benchmark": "texture",
        "frame_megabytes": {size: BothFrames(SIZES[size]).megabytes / 2 for size in arguments.sizes},
        "machine": machine() | {"cv2_threads": cv2.getNumThreads(), "torch_threads": torch.get_num_threads()},
        "cases": cases,
        "peers": others,
        "crossing": [crossing(name, changing, finisher, arguments.rounds) for name in stores if name != "cpu"],
    }
    report["targets"] = target_rows(report)
    print(table(report))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, report)
    plot(report, arguments.png)
    print(f"written to {arguments.out} and {arguments.png}")


if __name__ == "__main__":
    main()
