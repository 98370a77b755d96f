"""Loss and savings of attention in two levels of detail against full attention, by the share seen finely.

    python -m benchmarks.hierarchical [--repeats N] [--out FILE] [--png FILE]

Queries, keys and values are those of the bundled model's vision encoder on pictures of 1024×1024: 4096 patches, four
layers, three heads of 64. Error: the norm of the difference from full attention over the norm of full attention, for
each layer with the exact inputs (mean and largest over the layers), and for the encoder's result when all layers
attend in two levels. Saving: multiply-adds against full attention's, and time of one layer's attention on one core,
by turns with full attention in torch's fused kernel and in the same single steps that the two levels are made of.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from arr_coc.ops.attention import hierarchical_attention, multiply_adds
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.preprocess import grid_regions
from arr_coc.qwen.vision import Attend, VisualTokens, embed_rows, run_blocks
from arr_coc.types import TILE_PX, TileGrid
from benchmarks.allocate import scenery
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine
from stream.scenes.catalogue import load_scene

RESULTS = Path(__file__).parent / "results"
SIDE_PX = 1024
GRID = TileGrid.of(SIDE_PX, SIDE_PX)
PATCHES = (GRID.rows * 2, GRID.cols * 2)
SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
TIMED_SHARES = (0.0, 0.05, 0.1, 0.2)

Picture = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class AttentionWay:
    """Cells of 2^level × 2^level patches, chosen by `block` consecutive queries together; four make a tile."""

    level: int
    block: int

    @property
    def name(self) -> str:
        return f"cells of {1 << self.level}x{1 << self.level}, {self.block} queries a block"


WAYS = (AttentionWay(1, 16), AttentionWay(1, 64), AttentionWay(2, 16), AttentionWay(2, 64))


def pictures() -> dict[str, Picture]:
    scene = load_scene("hd")
    frame = scene.render(20)
    return {"drawn scene": frame[:SIDE_PX, :SIDE_PX], "clutter with text": scenery(1920)[:SIDE_PX, 600 : 600 + SIDE_PX]}


def row_major(rows: torch.Tensor) -> torch.Tensor:
    """Patches [..., N, D] in tile order (four of a tile together) as rows of the patch grid."""
    tiles = rows.unflatten(-2, (GRID.rows, GRID.cols, 2, 2))
    return tiles.transpose(-4, -3).flatten(-5, -2)


def in_two_levels(inputs: Inputs, way: AttentionWay, share: float) -> torch.Tensor:
    query, key, value = inputs
    return hierarchical_attention(
        query, row_major(key), row_major(value), grid=PATCHES, share=share, level=way.level, block=way.block
    )


def encode(tower: Any, picture: Picture, attend: Attend) -> VisualTokens:
    """Encode a picture with another attention.

    Args:
        tower: The vision encoder.
        picture: uint8 RGB [H, W, 3] of GRID.
        attend: Attention of each block.
    """
    tiles = picture.reshape(GRID.rows, TILE_PX, GRID.cols, TILE_PX, 3).transpose(0, 2, 4, 1, 3)
    pixels = torch.from_numpy(tiles.reshape(1, GRID.tiles, 3, TILE_PX, TILE_PX).copy())
    return run_blocks(tower, embed_rows(tower, pixels, grid_regions(GRID)[None], GRID), attend)


def full_encoding(tower: Any, picture: Picture) -> tuple[torch.Tensor, list[Inputs]]:
    """The encoder's result, and every layer's queries, keys and values [1, heads, N, head_dim]."""
    layers: list[Inputs] = []

    def attend(_: int, *inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = (rows.transpose(1, 2) for rows in inputs)
        layers.append((query, key, value))
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2)

    return encode(tower, picture, attend).embeds, layers


def encoded_in_two_levels(tower: Any, picture: Picture, way: AttentionWay, share: float) -> torch.Tensor:
    """Embeddings of a picture with hierarchical attention in every block.

    Args:
        tower: The vision encoder.
        picture: uint8 RGB [H, W, 3] of GRID.
        way: Level and block of the attention.
        share: Share of the cells that each block of queries reads exactly.
    """

    def attend(_: int, *inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = (rows.transpose(1, 2) for rows in inputs)
        return in_two_levels((query, key, value), way, share).transpose(1, 2)

    return encode(tower, picture, attend).embeds


def error_of(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def measure_errors(tower: Any, picture: Picture) -> dict[str, list[dict[str, float]]]:
    """For every way, errors and cost at every share."""
    expected, layers = full_encoding(tower, picture)
    exact = [F.scaled_dot_product_attention(*inputs) for inputs in layers]
    patches, head_dim = layers[0][0].shape[-2:]
    full = multiply_adds(patches, PATCHES, (head_dim, head_dim))
    measured: dict[str, list[dict[str, float]]] = {way.name: [] for way in WAYS}
    for way, share in product(WAYS, SHARES):
        errors = [
            error_of(in_two_levels(inputs, way, share), reference)
            for inputs, reference in zip(layers, exact, strict=True)
        ]
        result = encoded_in_two_levels(tower, picture, way, share)
        cost = multiply_adds(patches, PATCHES, (head_dim, head_dim), share=share, level=way.level)
        measured[way.name].append(
            {
                "share": share,
                "layer_error_mean": round(statistics.fmean(errors), 5),
                "layer_error_max": round(max(errors), 5),
                "result_error": round(error_of(result, expected), 5),
                "multiply_adds_of_full": round(cost / full, 4),
            }
        )
    return measured


def plainly(inputs: Inputs) -> torch.Tensor:
    """Full attention without a fused kernel, as `hierarchical_attention` is made."""
    query, key, value = inputs
    return (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(dim=-1) @ value


def measure_times(inputs: Inputs, repeats: int) -> dict[str, Any]:
    """Milliseconds of one layer's attention; all ways by turns."""
    works = {
        "full attention, fused": lambda: F.scaled_dot_product_attention(*inputs),
        "full attention, step by step": lambda: plainly(inputs),
    }
    for way in WAYS:
        for share in TIMED_SHARES:
            works[f"{way.name}, share {share:g}"] = lambda way=way, share=share: in_two_levels(inputs, way, share)
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            if turn:
                times[name].append((time.perf_counter() - started) * 1e3)
    return {
        name: {"min_ms": round(min(series), 2), "median_ms": round(statistics.median(series), 2)}
        for name, series in times.items()
    }


def draw(errors: dict[str, dict[str, list[dict[str, float]]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for (picture, ways), style in zip(errors.items(), ("-", "--"), strict=True):
        for colour, (way, rows) in enumerate(ways.items()):
            for panel, across in zip(panels, ("share", "multiply_adds_of_full"), strict=True):
                panel.plot(
                    [row[across] for row in rows],
                    [row["layer_error_mean"] for row in rows],
                    style,
                    marker=".",
                    color=f"C{colour}",
                    label=f"{way} ({picture})" if across == "share" else None,
                )
    panels[0].set(yscale="log", xlabel="share of cells seen key by key", ylabel="relative error, mean over layers")
    panels[1].set(xscale="log", xlabel="multiply-adds of full attention's")
    panels[1].axvline(1, color="black", linewidth=1)
    for panel in panels:
        panel.grid(alpha=0.3, which="both")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="timed turns")
    parser.add_argument("--out", type=Path, default=RESULTS / "hierarchical.json")
    parser.add_argument("--png", type=Path, default=RESULTS / "hierarchical.png")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tower = load_qwen(None, device="cpu", dtype="float32").tower
    images = pictures()
    with torch.inference_mode():
        errors = {name: measure_errors(tower, picture) for name, picture in images.items()}
        layer = full_encoding(tower, next(iter(images.values())))[1][1]
        times = measure_times(layer, arguments.repeats)
    report = {
        "benchmark": "hierarchical",
        "machine": machine() | {"threads": 1},
        "patches": list(PATCHES),
        "heads": layer[0].shape[1],
        "head_dim": layer[0].shape[-1],
        "errors": errors,
        "one_layer_ms": times,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, report)
    draw(errors, arguments.png)
    print(json.dumps({"errors": errors, "one_layer_ms": times}, indent=2))


if __name__ == "__main__":
    main()
