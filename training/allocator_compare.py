"""`python -m training.allocator_compare`: ways compared, coverage measures.

    python -m training.allocator_compare --model models/scenes-tiny --runs runs/allocator --ship

A run that a folder holds already is resumed, or kept if it is done. The best is the one that finds most on drawn clips
of the training split that no run learned from; what is reported is measured on the test split.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import cv2
import torch
import typer

from arr_coc.adaptation.accuracy import measure, measure_map
from arr_coc.adaptation.cases import AllocatorCase, Embedder
from arr_coc.adaptation.training_run import CHECKPOINT
from arr_coc.errors import ArrCocError, OptionError
from arr_coc.hub import ALLOCATOR_FOLDER
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.balancing import RelevanceRealiser
from training.allocator import OBJECTIVES, Recipe, train
from training.cases import FIRST_CHOSEN_BY, cases_of, random_samples

RESULTS = Path(__file__).parent / "results" / "allocator.json"
FIRST_MEASURED = 9_000_000
"""Clips from this number on, of the test split, are measured on."""

QUESTIONS = 11
AFTER_BOXES = "answer-after-boxes"
WAYS = (*OBJECTIVES, AFTER_BOXES)
"""Ways of training; the last one begins with what the boxes taught."""

Table = dict[str, dict[str, Any]]


def held_out_cases(split: str, first: int, clips: int, with_images: bool = False) -> list[AllocatorCase]:
    """Return cases of all kinds of questions.

    Args:
        split: Split of the clips, "train" or "test".
        first: Number of the first clip.
        clips: Number of clips.
        with_images: The cases hold the frames' images.
    """
    samples = random_samples(split, first, clips, QUESTIONS)  # type: ignore[arg-type]
    return list(cases_of(samples, with_images))


def compare(qwen: QwenVL, layers: dict[str, ARRCOCLayer], cases: list[AllocatorCase]) -> Table:
    """Means of every layer on the same cases, beside the untrained default and a map that knows the boxes."""
    embed, levels = Embedder(qwen), qwen.knows_levels
    table = {"untrained": measure(RelevanceRealiser(), cases, embed, levels=levels)}
    table |= {name: measure(layer.realiser, cases, embed, levels=levels) for name, layer in layers.items()}
    return table | {"the boxes themselves": measure_map(cases, levels=levels)}


def best_of(table: Table, names: list[str]) -> str:
    """The layer that shows most of the asked tiles at level 0, of 25 % of the tokens and of 10 %."""
    return max(names, key=lambda name: table[name]["all"]["recall"] + table[name]["all"]["recall_small"])


def train_each(
    ways: list[str], model: str, runs: Path, minutes: float, seed: int, base_folder: Path | None = None
) -> dict[str, ARRCOCLayer]:
    """Train one layer in each of several ways.

    Args:
        ways: Names of the ways, of `WAYS`.
        model: Folder of the model.
        runs: Folder with one folder for each way; a training with a checkpoint there is resumed.
        minutes: Minutes spent on the steps of each training.
        seed: Seed of weights and batches.
        base_folder: Folder of a layer whose weights are the initial ones.

    Returns:
        The layers by their way.

    Raises:
        OptionError: A way is unknown; also as `train`.
    """
    layers = {}
    for name in ways:
        if name not in WAYS:
            raise OptionError(f"unknown way of training {name!r}; there are {', '.join(WAYS)}")
        folder = runs / name
        recipe = Recipe("answer" if name == AFTER_BOXES else name, minutes, seed)  # type: ignore[arg-type]
        begin_with = runs / "boxes" / ALLOCATOR_FOLDER if name == AFTER_BOXES else base_folder
        print(f"{name}: {minutes} minutes of steps", flush=True)
        has_checkpoint = (folder / CHECKPOINT).is_file()
        layers[name] = train(model, recipe, folder, resume=has_checkpoint, begin_with=begin_with)
    return layers


def main(
    runs: Annotated[Path, typer.Option(help="Folder with a folder for every run.")],
    model: Annotated[str, typer.Option(help="The model's folder.")] = "models/scenes-tiny",
    ways: Annotated[str, typer.Option(help="Ways of training, separated by commas.")] = ",".join(WAYS),
    minutes: Annotated[float, typer.Option(help="Time to spend on the steps of every run.")] = Recipe.minutes,
    seed: Annotated[int, typer.Option(help="Seed of all runs.")] = Recipe.seed,
    clips: Annotated[int, typer.Option(help="Drawn clips to measure on.")] = 250,
    out: Annotated[Path, typer.Option(help="Path of the comparison.")] = RESULTS,
    ship: Annotated[bool, typer.Option(help="Lay the best into the model's folder.")] = False,
    begin_with: Annotated[Path | None, typer.Option(help="Begin with the layer in this folder.")] = None,
) -> None:
    """Train the allocator in every way, compare, and ship the best."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    try:
        layers = train_each(ways.split(","), model, runs, minutes, seed, begin_with)
    except ArrCocError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    qwen = load_qwen(model, device="cpu")
    chosen_by = compare(qwen, layers, held_out_cases("train", FIRST_CHOSEN_BY, clips))
    best = best_of(chosen_by, list(layers))
    measured = compare(qwen, layers, held_out_cases("test", FIRST_MEASURED, clips))
    result = {
        "model": qwen.model_id,
        "trained_for": layers[best].config.trained_for,
        "minutes": minutes,
        "seed": seed,
        "begin_with": begin_with is not None,
        "best": best,
        "chosen_by": {name: chosen_by[name]["all"] for name in layers},
        "test": measured,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    for name, row in measured.items():
        print(name, row["all"])
    if ship:
        layers[best].save_pretrained(Path(model) / ALLOCATOR_FOLDER)
        print(f"shipped: {best}")


if __name__ == "__main__":
    typer.run(main)
