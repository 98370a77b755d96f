"""`python -m training.allocator_compare`: ways compared, coverage measures.

    python -m training.allocator_compare --model models/scenes-tiny --runs runs/allocator --ship

A run that a folder holds already is resumed, or kept if it is done. The best is the one that finds most on drawn clips
of the training split that no run learned from; what is reported is measured on the test split.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
import typer

from arr_coc.allocation.attending import allocate
from arr_coc.errors import ArrCocError, OptionError
from arr_coc.hub import ALLOCATOR_FOLDER
from arr_coc.layer import ARRCOCLayer
from arr_coc.ops.regions import level_map
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import TextureArray
from training.allocator import OBJECTIVES, Recipe, train
from training.cases import FIRST_CHOSEN_BY, AllocatorCase, Embedder, cases_of, random_samples
from training.checkpointing import CHECKPOINT
from training.objectives import LEAST_SHARE

SHARE = 0.25
"""Share of the frame's tokens that is spent."""

SMALL_SHARE = 0.10

Tiles = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one case, or its mean over several.

    `recall`: the share of the asked tiles that are shown at level 0, of 25 % of the tokens, and `recall_small` of 10 %;
    `iou` of the tiles at level 0 with the asked ones, which cannot exceed `iou_bound`, as so many tiles are shown;
    `matched_iou`: that of as many most relevant tiles as are asked about.
    """

    recall: float
    recall_small: float
    iou: float
    iou_bound: float
    matched_iou: float


def found(relevance: torch.Tensor, wanted: torch.Tensor, levels: bool) -> Found:
    """Measures a map [gh, gw] against what is `wanted` of each tile; `levels` as `allocate` takes it."""
    asked = (wanted > LEAST_SHARE).numpy()
    shown = fine_tiles(relevance, SHARE, levels)
    few = fine_tiles(relevance, SMALL_SHARE, levels)
    return Found(
        recall=_share(shown, asked),
        recall_small=_share(few, asked),
        iou=_iou(shown, asked),
        iou_bound=min(1.0, asked.sum() / max(1, shown.sum())),
        matched_iou=_iou(_tiles(relevance, int(asked.sum()), "topk", levels), asked),
    )


def fine_tiles(relevance: torch.Tensor, share: float, levels: bool) -> Tiles:
    """The tiles that a share of the tokens shows at level 0: bool [gh, gw]. A model that knows levels has the whole
    frame covered, which leaves the fewest."""
    strategy = "foveated" if levels else "mixed"
    return _tiles(relevance, max(1, round(share * relevance.numel())), strategy, levels)


def _tiles(relevance: torch.Tensor, tokens: int, strategy: str, levels: bool) -> Tiles:
    regions = allocate(relevance, tokens, strategy, levels=levels).regions.numpy()
    return np.asarray(level_map(regions, (relevance.shape[0], relevance.shape[1])) == 0)


def _share(shown: Tiles, asked: Tiles) -> float:
    return float((shown & asked).sum() / asked.sum())


def _iou(shown: Tiles, asked: Tiles) -> float:
    return float((shown & asked).sum() / (shown | asked).sum())


@torch.inference_mode()
def measure(
    realiser: RelevanceRealiser, cases: Sequence[AllocatorCase], embed: Embedder, *, levels: bool
) -> dict[str, dict[str, float]]:
    """Means by kind of question, and over the kinds ("all"), each with the number of its cases.

    A `realiser` without learned parts is not told the question.
    """
    realiser.eval()

    def relevance_of(case: AllocatorCase) -> torch.Tensor:
        texture = TextureArray(case.texture.channels[None], case.texture.entropy[None])
        query = embed([case.question]) if realiser.participation.asked is not None else None
        return realiser(texture, query).relevance[0]

    return _table(((case, relevance_of(case)) for case in cases), levels)


def measure_map(cases: Sequence[AllocatorCase], *, levels: bool) -> dict[str, dict[str, float]]:
    """The same of a relevance that knows what is wanted of every tile: what can be reached."""
    return _table(((case, (case.wanted > LEAST_SHARE).float()) for case in cases), levels)


def _table(maps: Iterable[tuple[AllocatorCase, torch.Tensor]], levels: bool) -> dict[str, dict[str, float]]:
    by_kind: dict[str, list[Found]] = defaultdict(list)
    for case, relevance in maps:
        if (case.wanted > LEAST_SHARE).any():
            by_kind[case.kind].append(found(relevance, case.wanted, levels))
    kinds = {kind: {**_means(results), "cases": len(results)} for kind, results in sorted(by_kind.items())}
    names = [field.name for field in fields(Found)]
    overall = {name: round(float(np.mean([of[name] for of in kinds.values()])), 4) for name in names}
    return {"all": {**overall, "cases": sum(of["cases"] for of in kinds.values())}, **kinds}


def _means(results: Iterable[Found]) -> dict[str, float]:
    rows = [asdict(result) for result in results]
    return {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}


RESULTS = Path(__file__).parent / "results" / "allocator.json"
FIRST_MEASURED = 9_000_000
"""Clips from this number on, of the test split, are measured on."""

QUESTIONS = 11
AFTER_BOXES = "answer-after-boxes"
WAYS = (*OBJECTIVES, AFTER_BOXES)
"""Ways of training; the last one begins with what the boxes taught."""

Table = dict[str, dict[str, Any]]


def held_out_cases(split: str, first: int, clips: int) -> list[AllocatorCase]:
    """Cases of all kinds about so many clips."""
    return list(cases_of(random_samples(split, first, clips, QUESTIONS)))  # type: ignore[arg-type]


def compare(qwen: QwenVL, layers: dict[str, ARRCOCLayer], cases: list[AllocatorCase]) -> Table:
    """Means of every layer on the same cases, beside the untrained default and a map that knows the boxes."""
    embed, levels = Embedder(qwen), qwen.knows_levels
    table = {"untrained": measure(RelevanceRealiser(), cases, embed, levels=levels)}
    table |= {name: measure(layer.realiser, cases, embed, levels=levels) for name, layer in layers.items()}
    return table | {"the boxes themselves": measure_map(cases, levels=levels)}


def best_of(table: Table, names: list[str]) -> str:
    """The layer that shows most of what is asked at level 0, of 25 % of the tokens and of 10 %."""
    return max(names, key=lambda name: table[name]["all"]["recall"] + table[name]["all"]["recall_small"])


def train_each(
    ways: list[str], model: str, runs: Path, minutes: float, seed: int, earlier: Path | None = None
) -> dict[str, ARRCOCLayer]:
    """The given ways of training, each in its own folder, from the layer in `earlier` if there is one.

    Raises OptionError for a way that there is not, and as `train`.
    """
    layers = {}
    for name in ways:
        if name not in WAYS:
            raise OptionError(f"unknown way of training {name!r}; there are {', '.join(WAYS)}")
        folder = runs / name
        recipe = Recipe("answer" if name == AFTER_BOXES else name, minutes, seed)  # type: ignore[arg-type]
        begin_with = runs / "boxes" / ALLOCATOR_FOLDER if name == AFTER_BOXES else earlier
        print(f"{name}: {minutes} minutes of steps", flush=True)
        there = (folder / CHECKPOINT).is_file()
        layers[name] = train(model, recipe, folder, resume=there, begin_with=begin_with)
    return layers


def main(
    runs: Annotated[Path, typer.Option(help="Folder with a folder for every run.")],
    model: Annotated[str, typer.Option(help="The model's folder.")] = "models/scenes-tiny",
    ways: Annotated[str, typer.Option(help="Ways of training, separated by commas.")] = ",".join(WAYS),
    minutes: Annotated[float, typer.Option(help="Time to spend on the steps of every run.")] = Recipe.minutes,
    seed: Annotated[int, typer.Option(help="Seed of all runs.")] = Recipe.seed,
    clips: Annotated[int, typer.Option(help="Drawn clips to measure on.")] = 250,
    out: Annotated[Path, typer.Option(help="Where the comparison goes.")] = RESULTS,
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
