"""`python -m benchmarks.layouts`.

    python -m benchmarks.layouts [--rounds N] [--out FILE]

Memory layouts of a texture's levels: planar, RGB and RGBA. For 10 % of a 1080p frame's tiles, in one block: *update*
stores a tile on all levels, *gather* fetches tokens, *channels* computes the luma of level 1, *gl* and *cuda* pack the
tiles as they are uploaded. `benchmarks/support/layouts.cpp` does it with the tiles of the product's kernel, compiled
for this very processor. Figures are processor time of the thread: microseconds, and ratios to RGB, which the texture
has.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.types import TileGrid
from benchmarks.support.harness import write_report
from benchmarks.support.texture_frames import SIZES, TextureCase, changing_tiles
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results"
SOURCE = Path(__file__).parent / "support" / "layouts.cpp"

LAYOUTS = ("planar", "rgb", "rgba")
STEPS = ("update", "gather", "channels", "gl", "cuda")


class Layouts:
    """The compiled steps, for one grid."""

    def __init__(self, grid: TileGrid, folder: Path) -> None:
        """Compiles them into `folder`. Raises FileNotFoundError without g++, CalledProcessError if it fails."""
        library = folder / "layouts.so"
        command = ["g++", "-O3", "-std=c++17", "-march=native", "-shared", "-fPIC", "-pthread"]
        subprocess.run([*command, str(SOURCE), "-o", str(library)], check=True, stderr=subprocess.DEVNULL)
        self._library = ctypes.CDLL(str(library))
        self._library.layouts_step.restype = ctypes.c_int64
        self._library.layouts_open(*grid.shape)
        self._grid = grid

    def step(self, layout: str, step: str, tiles: np.ndarray) -> int:
        """Run a step; return its nanoseconds.

        Args:
            layout: One of LAYOUTS.
            step: One of STEPS.
            tiles: int32 [n, 2] (row, col), contiguous.
        """
        pointer = ctypes.c_void_p(tiles.ctypes.data)
        return int(self._library.layouts_step(LAYOUTS.index(layout), STEPS.index(step), pointer, len(tiles)))

    def outcome(self, name: str, count: int) -> bytes:
        """The first bytes of "tokens", "packed" or "luma", as the last step left them."""
        function = getattr(self._library, f"layouts_{name}")
        function.restype = ctypes.c_void_p
        return ctypes.string_at(function(), count)


def measure_layouts(layouts: Layouts, tiles: np.ndarray, rounds: int) -> dict[str, dict[str, float]]:
    """Medians in microseconds, by step and layout.

    Args:
        layouts: The compiled steps.
        tiles: int32 [n, 2] (row, col).
        rounds: Rounds, in which the layouts take turns.
    """
    samples: dict[str, dict[str, list[int]]] = {step: {layout: [] for layout in LAYOUTS} for step in STEPS}
    for _ in range(rounds):
        for layout in LAYOUTS:
            for step in STEPS:
                samples[step][layout].append(layouts.step(layout, step, tiles))
    return {
        step: {layout: round(statistics.median(times) / 1e3, 2) for layout, times in by_layout.items()}
        for step, by_layout in samples.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--out", type=Path, default=RESULTS / "layouts.json")
    arguments = parser.parse_args()
    grid = SIZES["1080p"]
    tiles = np.argwhere(changing_tiles(TextureCase(0.1), grid)).astype(np.int32, order="C")
    with tempfile.TemporaryDirectory() as folder:
        took_us = measure_layouts(Layouts(grid, Path(folder)), tiles, arguments.rounds)
    took_us["all"] = {layout: round(sum(took_us[step][layout] for step in STEPS), 2) for layout in LAYOUTS}
    ratios = {
        step: {layout: round(time_us / times["rgb"], 2) for layout, time_us in times.items()}
        for step, times in took_us.items()
    }
    report: dict[str, Any] = {
        "benchmark": "layouts",
        "machine": machine(),
        "tiles": len(tiles),
        "took_us": took_us,
        "of_rgb": ratios,
        "megabytes": {layout: round(grid.tiles * 1365 * (4 if layout == "rgba" else 3) / 1e6, 1) for layout in LAYOUTS},
    }
    for step, times in took_us.items():
        print(f"{step:10}" + "".join(f"{layout:>8} {time_us:8.1f} µs" for layout, time_us in times.items()))
    write_report(arguments.out, report)


if __name__ == "__main__":
    main()
