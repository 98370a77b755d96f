"""`python -m training.streams_compare`: allocators of each profile trained on streams, beside the one that ships.

    python -m training.streams_compare --runs runs/streams

They are trained in as many steps on the same streams, and measured on streams of the test split, each allocating
them itself. A run that a folder holds already is resumed, or kept if it is done.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import torch
import typer

from arr_coc.adaptation.accuracy import map_accuracy
from arr_coc.adaptation.losses import LEAST_SHARE
from arr_coc.adaptation.training_run import CHECKPOINT
from arr_coc.errors import ArrCocError
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from training.allocator import Recipe, train
from training.allocator_compare import FIRST_MEASURED
from training.streams import Stream, StreamCases, random_streams

RESULTS = Path(__file__).parent / "results" / "streams.json"
SHIPPED = "shipped"
WAYS: dict[str, tuple[str, bool]] = {
    "core13": ("core13", False),
    "full40": ("full40", False),
    "core13, from shipped": ("core13", True),
}
"""Profile of each way, and whether it begins with the weights that ship."""

FIGURES = ("recall", "recall_small", "matched_iou")
PAIRS = (("full40", "core13"), ("core13", SHIPPED), ("full40", SHIPPED), ("core13, from shipped", SHIPPED))

Scores = dict[str, dict[int, dict[str, float]]]
"""Way → clip → figures of that clip, "frames" among them."""


def stream_scores(qwen: QwenVL, layer: ARRCOCLayer, streams: Sequence[Stream]) -> dict[int, dict[str, float]]:
    """Mean figures of each clip, of the relevance by which the tokens of its frames are chosen."""
    rows: dict[int, list[dict[str, float]]] = defaultdict(list)
    cases = StreamCases(qwen, layer)
    for stream in streams:
        for case, relevance in cases.of(stream):
            if (case.target > LEAST_SHARE).any():
                rows[stream.clip].append(asdict(map_accuracy(relevance, case.target, qwen.knows_levels)))
    return {
        clip: {"frames": len(of), **{name: float(np.mean([row[name] for row in of])) for name in FIGURES}}
        for clip, of in rows.items()
    }


def summary(scores: Scores) -> dict[str, Any]:
    """Means of all ways over the clips, and differences of pairs with 95 % intervals, paired by clip."""
    means = {
        way: {name: round(float(np.mean([of[name] for of in clips.values()])), 4) for name in FIGURES}
        for way, clips in scores.items()
    }
    differences = {}
    for way, base in PAIRS:
        if way in scores and base in scores:
            differences[f"{way} − {base}"] = {
                name: _interval([scores[way][clip][name] - scores[base][clip][name] for clip in scores[base]])
                for name in FIGURES
            }
    return {"ways": means, "differences": differences}


def _interval(values: Sequence[float]) -> dict[str, float]:
    reach = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return {"mean": round(float(np.mean(values)), 4), "reach": round(reach, 4)}


def main(
    runs: Annotated[Path, typer.Option(help="Folder with a folder for every run.")],
    model: Annotated[str, typer.Option(help="The model's folder.")] = "models/scenes-tiny",
    ways: Annotated[str, typer.Option(help="Ways to compare, separated by semicolons.")] = ";".join(WAYS),
    steps: Annotated[int, typer.Option(help="Training steps of every run.")] = 1200,
    clips: Annotated[int, typer.Option(help="Drawn clips of each round to learn from.")] = 24,
    test_clips: Annotated[int, typer.Option(help="Drawn clips to measure on.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of all runs.")] = Recipe.seed,
    out: Annotated[Path, typer.Option(help="Path of the comparison.")] = RESULTS,
) -> None:
    """Train an allocator on streams for each profile, and compare."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    qwen = load_qwen(model, device="cpu")
    layers = {} if qwen.allocator is None else {SHIPPED: qwen.allocator}
    for name in ways.split(";"):
        channels, from_shipped = WAYS[name]
        folder = runs / name.replace(" ", "-").replace(",", "")
        recipe = Recipe("streams", steps=steps, seed=seed, clips=clips, scorer="film", channels=channels)
        begin_with = Path(model) / "arr_coc" if from_shipped else None
        try:
            layers[name] = train(model, recipe, folder, resume=(folder / CHECKPOINT).is_file(), begin_with=begin_with)
        except ArrCocError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
        print(f"{name}: trained", flush=True)
    streams = list(random_streams("test", FIRST_MEASURED, test_clips, questions=1))
    scores: Scores = {}
    for name, layer in layers.items():
        scores[name] = stream_scores(qwen, layer, streams)
        table = {
            "model": Path(model).name,
            "steps": steps,
            "clips": clips,
            "test_clips": len(scores[name]),
            "test_frames": sum(int(of["frames"]) for of in scores[name].values()),
            "seed": seed,
            **summary(scores),
        }
        print(name, table["ways"][name], flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
