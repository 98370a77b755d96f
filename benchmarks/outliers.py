"""Linear layers in 8 and 4 bits whose rows have a few channels that are 50 to 1,000 times as large as the rest.

    python -m benchmarks.outliers [--rounds N] [--threads N] [--out FILE]

Weights and rows are normally distributed. `errors`: what is off, relative to the product of the ordinary channels
alone, with these channels kept apart (`small_weights/outliers.py`) and not. `massive token`: one row of 64 is 1,000
times as large, or is in two channels; the error is that of the other rows, and of all. `times`: processor time of
layers of Qwen3-VL-2B's sizes in ms, the smallest of some rounds, by turns: channels kept apart or not with ordinary
rows, then with 1 % of the channels 200 times as large. `ARR_COC_KERNEL=reference` measures what torch multiplies.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from arr_coc.qwen.small_weights.layers import Int4Linear, Int8Linear, SmallLinear
from arr_coc.qwen.small_weights.outliers import checkpoint_weights
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results" / "outliers.json"
KINDS: dict[str, Callable[[nn.Linear], SmallLinear]] = {
    "int8": Int8Linear,
    "int8, vision tower": partial(Int8Linear, many_rows=True),
    "int4": Int4Linear,
}
WIDTH = 2048
SHARES = (0.001, 0.01)
SIZES = (50, 200, 1000)
"""Of the channels that stand out, relative to the rest."""

SHAPES = ((2048, 2048), (6144, 2048), (2048, 6144))
"""Outputs and inputs of layers of Qwen3-VL-2B."""

COUNTS = (1, 256)
MASSIVE = 1000
REPEATS = 20
"""Products of one row that are timed together."""


def layer_of(kind: Callable[[nn.Linear], SmallLinear], shape: tuple[int, int], folder: Path) -> tuple[Any, Any]:
    """Return a small layer [outputs, inputs] and its original, which `folder` holds as a checkpoint does."""
    torch.manual_seed(0)
    outputs, inputs = shape
    linear = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
    nn.init.normal_(linear.weight, std=0.02)
    save_file({"linear.weight": linear.weight}, folder / "model.safetensors")
    small = kind(linear)
    small.outliers.source = checkpoint_weights(folder, ["linear.weight"])["linear.weight"]
    return small, linear


def keep_together(small: SmallLinear) -> None:
    """Let a layer multiply all channels as one."""
    product = small._weights.product
    small._weights.product = lambda rows: product(replace(rows, ratio=0.0))
    small._stood_out = False  # it looks for channels at once if the last rows had some


def cases() -> Iterator[tuple[str, torch.Tensor, torch.Tensor, slice]]:
    """Yield rows by name, the rows but for what stands out, and the rows whose error counts."""
    torch.manual_seed(1)
    rows = torch.randn(64, WIDTH)
    every = slice(None)
    yield "none", rows, rows, every
    for share in (1 / WIDTH, *SHARES):
        channels = torch.randperm(WIDTH)[: round(share * WIDTH)]
        ordinary = rows.index_fill(1, channels, 0)
        for size in SIZES:
            name = f"{len(channels)} of {WIDTH} channels, {size}x"
            yield name, ordinary + size * (rows - ordinary), ordinary, every
    factors = torch.ones(64, 1)
    factors[0] = MASSIVE
    yield f"massive token, {MASSIVE}x", rows * factors, rows, slice(1, None)
    spikes = torch.zeros(64, WIDTH)
    spikes[0, [3, 1000]] = float(MASSIVE)
    yield f"massive token in 2 channels, {MASSIVE}x", rows + spikes, rows, every


def errors(kind: Callable[[nn.Linear], SmallLinear], folder: Path) -> dict[str, dict[str, float]]:
    """Return the error in % of each of `cases`, with the channels kept apart and not."""
    figures = {}
    for name, rows, ordinary, counted in cases():
        small, linear = layer_of(kind, (WIDTH, WIDTH), folder)
        size = linear(ordinary[counted]).norm()
        figures[name] = {}
        for key in ("apart", "not"):
            if key == "not":
                keep_together(small)
            figures[name][key] = round(100 * float((small(rows) - linear(rows))[counted].norm() / size), 2)
    return figures


def times(apart: SmallLinear, together: SmallLinear, count: int, rounds: int) -> dict[str, float]:
    """Return the times of two layers for some rows in ms, by turns: with channels kept apart, and not."""
    rows = torch.randn(count, apart.in_features)
    standing_out = rows.clone()
    standing_out[:, torch.randperm(apart.in_features)[: apart.in_features // 100]] *= 200
    ways: dict[str, Callable[[], Any]] = {
        "ordinary, not apart": partial(together, rows),
        "ordinary": partial(apart, rows),
        "1 % of the channels, 200x": partial(apart, standing_out),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            best[name] = min(best[name], _time(way, REPEATS if count == 1 else 1))
    return {name: round(seconds * 1e3, 3) for name, seconds in best.items()}


def _time(way: Callable[[], Any], repeats: int) -> float:
    way()
    begin = time.process_time()
    for _ in range(repeats):
        way()
    return (time.process_time() - begin) / repeats


def table(figures: dict[str, dict[str, dict[str, float]]]) -> Sequence[str]:
    """Return the errors as lines."""
    names = list(next(iter(figures.values())))
    return [
        f"{name:42}" + "".join(f"{kind[name]['not']:>9} → {kind[name]['apart']:<6}" for kind in figures.values())
        for name in names
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report: dict[str, Any] = {"benchmark": "outliers", "machine": machine()}
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = Path(name)
        report["errors_percent"] = {kind: errors(make, folder) for kind, make in KINDS.items()}
        print(*table(report["errors_percent"]), sep="\n")
        report["times_ms"] = {}
        for kind, make in KINDS.items():
            for shape in SHAPES:
                whole, _ = layer_of(make, shape, folder)
                small, _ = layer_of(make, shape, folder)  # the last one: its file is read
                keep_together(whole)
                for count in COUNTS:
                    figures = times(small, whole, count, arguments.rounds)
                    report["times_ms"][f"{kind}, {list(shape)}, {count} rows"] = figures
                    print(f"{kind:20} {shape!s:14} {count:4} rows  {figures}", flush=True)
    write_report(arguments.out, report)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
