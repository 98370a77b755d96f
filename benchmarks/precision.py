"""Precision of eight bits a texel: box pyramids of bytes, of 16-bit and of 32-bit floats, as the model sees them.

    python -m benchmarks.precision [--frames N] [--out FILE]

Each level of a pyramid is made of the finer one as that is stored: bytes as `(a + b + c + d + 2) >> 2`, floats in
[0, 1] as a mean, rounded to half or single precision. Frames are those of the drawn scenes. For each level all its
regions are encoded by the bundled model's vision tower, and their embeddings compared with those of the 32-bit pyramid:
the relative error of a token is the norm of the difference over the norm. Answers are given about the same regions,
64 chosen from all levels, with pixels from bytes and from half floats: which of them differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.packets import packet_from
from arr_coc.qwen.encoding import encode_packet
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.texture.store.raster import allocate_levels, refresh
from arr_coc.types import LEVELS, TILE_PX, FramePlanes, FrameStamp, TileGrid, TokenPacket
from arr_coc.video.texture_updater import TextureUpdater
from benchmarks.support.harness import write_report
from stream.config import DEFAULT_QUERY
from stream.monitor.machine import machine
from stream.scenes import load_scene

RESULTS = Path(__file__).parent / "results" / "precision.json"
SCENES = ("demo", "moving", "cuts", "pan", "static", "noise")
QUESTIONS = (DEFAULT_QUERY, "How many things are there?", "Where is the red circle?")
BUDGET = 64
MAX_TOKENS = 32

Levels = Sequence[npt.NDArray[Any]]


def byte_levels(picture: npt.NDArray[np.uint8], grid: TileGrid) -> Levels:
    """Six levels uint8, of a picture uint8 [H, W, 3] that is padded to whole tiles by edge replication."""
    levels = allocate_levels(*grid.shape)
    padding = ((0, grid.padded_height_px - grid.height_px), (0, grid.padded_width_px - grid.width_px), (0, 0))
    levels[0][:] = np.pad(picture, padding, mode="edge")
    refresh(levels, (0, 0, *grid.shape))
    return levels


def float_levels(level0: npt.NDArray[np.uint8], dtype: type[np.floating[Any]]) -> Levels:
    """Six levels of `dtype` in [0, 1]; each stored before the next one is made of it."""
    levels = [(level0.astype(np.float32) / 255).astype(dtype)]
    for _ in range(LEVELS - 1):
        fine = levels[-1].astype(np.float32)
        mean = (fine[0::2, 0::2] + fine[1::2, 0::2] + fine[0::2, 1::2] + fine[1::2, 1::2]) / 4
        levels.append(mean.astype(dtype))
    return levels


def gather_pixels(levels: Levels, regions: npt.NDArray[np.integer[Any]]) -> npt.NDArray[Any]:
    """Pixels of regions [K, 3] (level, row, col): [K, 3, 32, 32] in 0..255, edge-clamped."""
    side = np.arange(TILE_PX)
    pixels = []
    for level, row, col in regions.tolist():
        texels = levels[level]
        down = np.minimum(row * TILE_PX + side, texels.shape[0] - 1)
        across = np.minimum(col * TILE_PX + side, texels.shape[1] - 1)
        pixels.append(texels[down[:, None], across].transpose(2, 0, 1))
    stacked = np.stack(pixels)
    return stacked if stacked.dtype == np.uint8 else stacked.astype(np.float32) * 255


def level_errors(
    qwen: QwenVL, pyramids: dict[str, Levels], exact: Levels, grid: TileGrid, level: int
) -> dict[str, npt.NDArray[np.float64]]:
    """For each pyramid, the relative error of every token of one level.

    Args:
        qwen: The model.
        pyramids: Levels [H, W, 3] of each kind of number, by its name.
        exact: Levels of the reference.
        grid: Tiles of level 0.
        level: The level.

    Returns:
        float64 [K] for each pyramid.
    """
    rows, cols = (-(-size // (1 << level)) for size in grid.shape)
    regions = np.array([(level, row, col) for row in range(rows) for col in range(cols)], np.int32)
    reference = embed_regions(qwen, exact, regions, grid)
    return {
        name: relative_errors(embed_regions(qwen, levels, regions, grid), reference)
        for name, levels in pyramids.items()
    }


def embed_regions(qwen: QwenVL, levels: Levels, regions: npt.NDArray[np.int32], grid: TileGrid) -> torch.Tensor:
    """Embeddings of regions, all at once.

    Args:
        qwen: The model.
        levels: Levels [H, W, 3] of the picture.
        regions: int32 [K, 3] (level, row, col).
        grid: Tiles of level 0.

    Returns:
        float32 [K, D].
    """
    packet = packet_of(levels, regions, grid, FrameStamp(0, 0, 0))
    return encode_packet(qwen, packet, "sparse").tokens.embeds[0].float()


def packet_of(levels: Levels, regions: npt.NDArray[np.int32], grid: TileGrid, stamp: FrameStamp) -> TokenPacket:
    """The packet of regions of a picture.

    Args:
        levels: Levels [H, W, 3] of the picture.
        regions: int32 [K, 3] (level, row, col).
        grid: Tiles of level 0.
        stamp: Number and times of the frame.
    """
    return TokenPacket(stamp, grid, regions, np.ones(len(regions), np.float32), gather_pixels(levels, regions))


def relative_errors(actual: torch.Tensor, expected: torch.Tensor) -> npt.NDArray[np.float64]:
    """float64 [K]: ‖actual − expected‖ / ‖expected‖ of each row."""
    return ((actual - expected).norm(dim=1) / expected.norm(dim=1)).double().numpy(force=True)


def answers_of(qwen: QwenVL, packet: TokenPacket) -> list[str]:
    session = AnswerSession(qwen, AnswerOptions(decoding=Decoding(max_tokens=MAX_TOKENS)))
    return ["".join(session.answer(packet, question)) for question in QUESTIONS]


def measure(qwen: QwenVL, frames: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The errors of each level, and the answers that differ, over `frames` frames of each scene."""
    errors: dict[tuple[int, str], list[npt.NDArray[np.float64]]] = {}
    answer_count, changed = 0, []
    for name in SCENES:
        scene = load_scene(name)
        allocator = StreamAllocator(AllocatorOptions(budget=BUDGET))
        for index in np.linspace(0, scene.frames - 1, frames).astype(int).tolist():
            picture = scene.render(index)
            grid = TileGrid.of(*picture.shape[:2])
            eight = byte_levels(picture, grid)
            half, exact = float_levels(eight[0], np.float16), float_levels(eight[0], np.float32)
            for level in range(LEVELS):
                by_kind = level_errors(qwen, {"8-bit": eight, "16-bit float": half}, exact, grid, level)
                for kind, values in by_kind.items():
                    errors.setdefault((level, kind), []).append(values)
            packet = allocate_packet(allocator, picture, index)
            texts = (
                answers_of(qwen, packet),
                answers_of(qwen, replace(packet, pixels=gather_pixels(half, packet.regions))),
            )
            answer_count += len(QUESTIONS)
            changed += [
                {"scene": name, "frame": index, "question": question, "8-bit": byte_text, "16-bit float": half_text}
                for question, byte_text, half_text in zip(QUESTIONS, *texts, strict=True)
                if byte_text != half_text
            ]
    share = round(len(changed) / answer_count, 4)
    return rows_of(errors), {"given": answer_count, "changed": len(changed), "changed_share": share, "which": changed}


def allocate_packet(allocator: StreamAllocator, picture: npt.NDArray[np.uint8], index: int) -> TokenPacket:
    """The regions of all levels that the allocator chooses, with their pixels from bytes.

    Args:
        allocator: Chooses the regions.
        picture: uint8 RGB [H, W, 3].
        index: Number of the frame.
    """
    updater = TextureUpdater()
    update = updater.process(FramePlanes("rgb", (picture,)), FrameStamp(index, index, 0))
    with updater.lease() as view:
        packet = packet_from(view, allocator.allocate(view, update.motion))
    updater.close()
    return packet


def rows_of(errors: dict[tuple[int, str], list[npt.NDArray[np.float64]]]) -> list[dict[str, Any]]:
    rows = []
    for (level, kind), parts in sorted(errors.items()):
        values = np.concatenate(parts)
        figures = {"mean": values.mean(), "p99": np.percentile(values, 99), "max": values.max()}
        rounded = {name: float(f"{value:.3g}") for name, value in figures.items()}
        rows.append({"level": level, "texture": kind, "tokens": len(values), "relative_error": rounded})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=6, help="frames of each scene")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    qwen = load_qwen(None, device="auto", dtype="auto")
    levels, answers = measure(qwen, arguments.frames)
    for row in levels:
        error = row["relative_error"]
        print(f"level {row['level']}  {row['texture']:13} mean {error['mean']:.2e}  max {error['max']:.2e}")
    print(f"answers that differ: {answers['changed']} of {answers['given']}")
    report = {
        "benchmark": "precision",
        "machine": machine() | {"device": str(qwen.device)},
        "model": qwen.model_id,
        "scenes": list(SCENES),
        "budget": BUDGET,
        "levels": levels,
        "answers": answers,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, report)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
