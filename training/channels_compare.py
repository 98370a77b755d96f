"""`python -m training.channels_compare`: what the channels `full40` bring beside `core13`.

    python -m training.channels_compare --runs runs/channels

Allocators of one model are trained on boxes, from nothing, in as many steps on the same clips, and measured on the
clips of the test split: pictures of which nothing is known, and the same after a glance at them, whose evidence moves
the relevance of each. A run that a folder holds already is resumed, or kept if it is done; ways that the
output holds already, made with the same settings, are not made again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import cv2
import torch
import typer

from arr_coc.adaptation.accuracy import measure, measure_map
from arr_coc.adaptation.cases import AllocatorCase, Embedder
from arr_coc.adaptation.training_run import CHECKPOINT
from arr_coc.errors import ArrCocError
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from training.allocator import Recipe, train
from training.allocator_compare import FIRST_MEASURED, QUESTIONS
from training.cases import cases_of, random_samples
from training.past import GlancedPast

RESULTS = Path(__file__).parent / "results" / "channels.json"

WAYS: dict[str, dict[str, Any]] = {
    "core13": {"channels": "core13"},
    "core13, glanced": {"channels": "core13", "past": True},
    "full40": {"channels": "full40"},
    "full40, glanced": {"channels": "full40", "past": True},
}
"""Ways of training; `glanced`: also on pictures after a glance at them."""


@dataclass(frozen=True, slots=True)
class Cases:
    """The same pictures as the scorers of one profile see them: without a past, and after a glance."""

    first: list[AllocatorCase]
    glance_cases: list[AllocatorCase]

    @classmethod
    def of(cls, qwen: QwenVL, layer: ARRCOCLayer, clips: int) -> Cases:
        """Cases of `clips` clips of the test split."""
        samples = random_samples("test", FIRST_MEASURED, clips, QUESTIONS)
        cases = list(cases_of(samples, channels=layer.config.channels, past=GlancedPast(qwen, layer)))
        return cls(cases[0::2], cases[1::2])


def measured(qwen: QwenVL, layer: ARRCOCLayer, clips: int) -> dict[str, Any]:
    """Means over all kinds of questions: nothing known; after a glance, and how much of that is evidence alone."""
    cases, embed, levels = Cases.of(qwen, layer, clips), Embedder(qwen), qwen.knows_levels
    realiser = layer.realiser
    evidence = [
        replace(case, texture=first.texture) for case, first in zip(cases.glance_cases, cases.first, strict=True)
    ]
    return {
        "weights": sum(parameter.numel() for parameter in layer.parameters()),
        "nothing known": measure(realiser, cases.first, embed, levels=levels)["all"],
        "after a glance": measure(realiser, cases.glance_cases, embed, levels=levels)["all"],
        "after a glance, channels without it": measure(realiser, evidence, embed, levels=levels)["all"],
    }


def main(
    runs: Annotated[Path, typer.Option(help="Folder with a folder for every run.")],
    model: Annotated[str, typer.Option(help="The model's folder.")] = "models/scenes-tiny",
    ways: Annotated[str, typer.Option(help="Ways to compare, separated by semicolons.")] = ";".join(WAYS),
    steps: Annotated[int, typer.Option(help="Training steps of every run.")] = 600,
    clips: Annotated[int, typer.Option(help="Drawn clips to learn from.")] = 150,
    test_clips: Annotated[int, typer.Option(help="Drawn clips to measure on.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of all runs.")] = Recipe.seed,
    scorer: Annotated[str, typer.Option(help="Query scorer: film or cross.")] = "film",
    out: Annotated[Path, typer.Option(help="Path of the comparison.")] = RESULTS,
) -> None:
    """Train an allocator on each profile, and compare."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    settings: dict[str, int | str] = {
        "steps": steps,
        "clips": clips,
        "test_clips": test_clips,
        "seed": seed,
        "scorer": scorer,
    }
    table = _read(out, settings)
    qwen = load_qwen(model, device="cpu")
    for name in (way for way in ways.split(";") if way not in table):
        folder = runs / name.replace(" ", "-").replace(",", "")
        recipe = Recipe("boxes", steps=steps, seed=seed, clips=clips, scorer=scorer, **WAYS[name])  # type: ignore[arg-type]
        try:
            layer = train(model, recipe, folder, resume=(folder / CHECKPOINT).is_file())
        except ArrCocError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
        table[name] = measured(qwen, layer, test_clips)
        print(name, table[name]["nothing known"], table[name]["after a glance"], flush=True)
        _write(out, model, table, settings)
    cases = list(cases_of(random_samples("test", FIRST_MEASURED, test_clips, QUESTIONS)))
    table["the boxes themselves"] = measure_map(cases, levels=qwen.knows_levels)["all"]
    _write(out, model, table, settings)


def _read(out: Path, settings: dict[str, int | str]) -> dict[str, Any]:
    """The table that an earlier run with these settings has begun."""
    table = json.loads(out.read_text("utf-8")) if out.is_file() else {}
    same = all(table.get(name) == value for name, value in settings.items())
    return {name: row for name, row in table["ways"].items() if name in WAYS} if same else {}


def _write(out: Path, model: str, table: dict[str, Any], settings: dict[str, int | str]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"model": Path(model).name, **settings, "ways": table}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
