"""The texture's work on OpenGL beside the driver's own mipmaps, and beside the same work on the host.

    python -m benchmarks.opengl [--rounds N] [--sizes 720p 1080p] [--out FILE]

*Mipmaps*: levels 1 to 5 by glGenerateMipmap, which knows no tiles, against those of the store, which are the rounded
means of 2×2 texels: how many bytes differ, by how much at most and in the mean; and the time of a frame of which 1, 10
and 100 % of the tiles change, RGB and known, until the device is done: by the store, by uploading the same level 0
whole with glGenerateMipmap, and by glGenerateMipmap alone.

*Choice*: milliseconds from a written texture to the regions of 273 tokens, by channels, scores, blending and the
strategy `topk`, after 10 % of the tiles changed. On the device (`DeviceRelevance`), on the host from levels of the same
texture that are read back, on the host from channels of the device, and on the host with the CPU store.

*Cameras*: milliseconds to update the textures of 4 cameras, of which 10 % of the tiles change: a store each, one after
another; layers of one array (GL_TEXTURE_2D_ARRAY) one after another; and layers of one array together.

All take turns in one process. `software` in the report: a CPU drew, and its times say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from arr_coc.backends.gl.layers import GlLayers
from arr_coc.backends.gl.store import GlStore
from arr_coc.backends.registry import open_store
from arr_coc.texture.store.base import TextureStore
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.types import LEVELS, Colour, FramePlanes, FrameStamp, TileGrid
from benchmarks.support.harness import percentiles, write_report
from benchmarks.support.texture_frames import (
    SIZES,
    TextureCase,
    changing_tiles,
    make_frames,
    rgb_of,
)
from benchmarks.texture import finisher, since_ms
from stream.extensions.doctor.gpu.driver_mipmaps import GenerateMipmap
from stream.extensions.doctor.gpu.sizes import TOKENS, ShaderChoice, TileChoice, TorchChoice
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results" / "opengl.json"
ALL_SIZES = {"360p": TileGrid.of(360, 640)} | SIZES
SHARES = (0.01, 0.10, 1.0)
LEASE_MS = 5000


def mipmap_difference(grid: TileGrid) -> list[dict[str, Any]]:
    """A row for each level: how far the driver's bytes are from the rounded means of 2×2 texels."""
    frame = rgb_of(make_frames(TextureCase(0.0), grid)[0])
    driver = GenerateMipmap(grid)
    with closing(GlStore(PlaneFormat.of(frame), Thresholds(), LEASE_MS)) as store:
        store.update(frame, FrameStamp(0, 0, 0))
        with store.lease() as view:
            own = [view.read(level).astype(np.int16) for level in range(LEVELS)]
    driver.run(own[0].astype(np.uint8))
    rows = []
    for level, (mine, theirs) in enumerate(zip(own, driver.levels(), strict=True)):
        difference = theirs.astype(np.int16) - mine
        rows.append(
            {
                "level": level,
                "bytes_that_differ": round(float((difference != 0).mean()), 4),
                "largest": int(np.abs(difference).max()),
                "mean": round(float(difference.mean()), 4),
            }
        )
    return rows


def mipmap_times(grid: TileGrid, share: float, rounds: int) -> dict[str, Any]:
    """Milliseconds of a frame by the store and by the driver."""
    case = TextureCase(share)
    frames = [rgb_of(frame) for frame in make_frames(case, grid)]
    difference = Difference(changing_tiles(case, grid))
    driver = GenerateMipmap(grid)
    padded = [_padded(frame, grid) for frame in frames]
    with closing(GlStore(PlaneFormat.of(frames[0]), Thresholds(), LEASE_MS)) as store:
        store.update(frames[0], FrameStamp(0, 0, 0))
        finish = finisher(store)

        def own(turn: int) -> None:
            store.write(frames[turn % 2], difference, FrameStamp(turn, 0, 0))
            finish()

        ways: dict[str, Callable[[int], None]] = {
            "store": own,
            "upload and glGenerateMipmap": lambda turn: driver.run(padded[turn % 2]),
            "glGenerateMipmap alone": lambda turn: driver.generate(),
        }
        return {"share": share, "milliseconds": by_turns(ways, rounds)}


def _padded(frame: FramePlanes, grid: TileGrid) -> np.ndarray:
    plane = frame.planes[0]
    below, right = grid.padded_height_px - plane.shape[0], grid.padded_width_px - plane.shape[1]
    return cv2.copyMakeBorder(plane, 0, below, 0, right, cv2.BORDER_REPLICATE)


def by_turns(ways: dict[str, Callable[[int], None]], rounds: int) -> dict[str, dict[str, float]]:
    """Figures of each way's times in milliseconds; two rounds more, which do not count, go before."""
    times_ms: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, work in ways.items():
            start_ns = time.perf_counter_ns()
            work(turn)
            times_ms[name].append(since_ms(start_ns))
    return figures_of(times_ms)


def figures_of(times_ms: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """The least time, which a busy machine changes little, and percentiles, without the first two."""
    return {name: {"min": round(min(values[2:]), 3)} | percentiles(values[2:], 3) for name, values in times_ms.items()}


def choice_times(grid: TileGrid, rounds: int) -> dict[str, Any]:
    """Percentiles of milliseconds of each way, and the share of equal tiles of the first and the last way."""
    case = TextureCase(0.10)
    frames = [rgb_of(frame) for frame in make_frames(case, grid)]
    difference = Difference(changing_tiles(case, grid))
    with ExitStack() as stack:
        fmt = PlaneFormat.of(frames[0])
        gl = [stack.enter_context(closing(GlStore(fmt, Thresholds(), LEASE_MS))) for _ in range(3)]
        cpu = stack.enter_context(closing(open_store(fmt, "cpu", lease_timeout_ms=LEASE_MS)))
        gl[0].gives_channels, gl[1].gives_channels, gl[2].gives_channels = False, True, False
        torch.manual_seed(0)
        ways: dict[str, tuple[TextureStore, TileChoice]] = {
            "device": (gl[0], ShaderChoice(TOKENS)),
            "host, channels of the device": (gl[1], TorchChoice(TOKENS)),
            "host, levels read back": (gl[2], TorchChoice(TOKENS)),
            "host, CPU store": (cpu, TorchChoice(TOKENS)),
        }
        times_ms: dict[str, list[float]] = {name: [] for name in ways}
        equal = []
        for turn in range(rounds + 2):
            regions = {}
            for name, (store, chooser) in ways.items():
                stamp = FrameStamp(turn, turn * 40_000_000, 0)
                store.write(frames[turn % 2], difference, stamp)
                finisher(store)()
                start_ns = time.perf_counter_ns()
                with store.lease() as view:
                    regions[name] = chooser.choose(view)
                times_ms[name].append(since_ms(start_ns))
            equal.append(torch.equal(regions["device"], regions["host, CPU store"]))
    return {"milliseconds": figures_of(times_ms), "equal_choices": statistics.mean(equal)}


CAMERAS = 4


def camera_times(grid: TileGrid, rounds: int) -> dict[str, dict[str, float]]:
    """Percentiles of milliseconds of an update of all cameras."""
    frames = [rgb_of(frame) for frame in make_frames(TextureCase(0.10), grid)]
    fmt = PlaneFormat.of(frames[0])
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(GlStore(fmt, Thresholds(), LEASE_MS))) for _ in range(CAMERAS)]
        apart, together = (stack.enter_context(closing(GlLayers(fmt, CAMERAS, None, LEASE_MS))) for _ in range(2))
        finish = finisher(stores[0])

        def each(members: Sequence[GlStore], turn: int) -> None:
            for store in members:
                store.update(frames[turn % 2], FrameStamp(turn, 0, 0))
            finish()

        def at_once(turn: int) -> None:
            together.update([frames[turn % 2]] * CAMERAS, [FrameStamp(turn, 0, 0)] * CAMERAS)
            finish()

        ways: dict[str, Callable[[int], None]] = {
            "a store each": lambda turn: each(stores, turn),
            "layers one by one": lambda turn: each(apart.stores, turn),
            "layers together": at_once,
        }
        return by_turns(ways, rounds)


def run(sizes: dict[str, TileGrid], rounds: int) -> dict[str, Any]:
    """Everything, as it is written to the file."""
    with closing(GlStore(PlaneFormat("gray", 32, 32, (1, 1), Colour()), Thresholds(), 1)) as store:
        device = {"renderer": store.hardware, "software": store.device.software}
    return {
        "benchmark": "opengl",
        "machine": machine() | device,
        "note": "Mesa in software: a CPU drew" if device["software"] else "a GPU drew",
        "rounds": rounds,
        "mipmaps": {
            size: {
                "levels": mipmap_difference(grid),
                "times": [mipmap_times(grid, share, rounds) for share in SHARES],
            }
            for size, grid in sizes.items()
        },
        "cameras": {size: camera_times(grid, rounds) for size, grid in sizes.items()},
        "choice": {size: choice_times(grid, rounds) for size, grid in sizes.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="rounds that count, of each way")
    parser.add_argument("--sizes", nargs="+", choices=list(ALL_SIZES), default=["360p", "720p", "1080p"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report = run({name: ALL_SIZES[name] for name in arguments.sizes}, arguments.rounds)
    write_report(arguments.out, report)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
