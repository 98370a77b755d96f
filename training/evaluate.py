"""Evaluation of a model on drawn worlds that it has not seen: `python -m training.evaluate [MODEL] --budget 64`.

Every question goes the way a user's goes, through `ARRCOCQwen.generate` with the real allocator. An answer counts
when it is right word for word.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import torch
import typer

from arr_coc.model import ARRCOCQwen
from training.clips.demo_worlds import KINDS, SIZES_PX, DemoQuestion, World, ask, random_world

HELD_OUT_SEED = 900_000
"""Training pictures come from seeds far below."""


def held_out(worlds: int, size_px: tuple[int, int] | None = None) -> Iterator[tuple[World, list[DemoQuestion]]]:
    """Worlds of one size, or of all sizes, each with one question of every kind; the same on every call."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    for index in range(worlds):
        world = random_world(rng, size_px or SIZES_PX[index % len(SIZES_PX)])
        yield world, [ask(rng, world.facts, kind) for kind in KINDS]


def accuracy(model: ARRCOCQwen, worlds: int, budget: int, size_px: tuple[int, int] | None = None) -> dict[str, float]:
    """Share of right answers for every kind of question, and of things rightly described in captions.

    Questions for a number in pictures without one are counted apart: they are right for a model that reads no digit.
    """
    right: dict[str, list[float]] = defaultdict(list)
    for world, questions in held_out(worlds, size_px):
        for question in questions:
            text = model.generate(world.image, question.text, budget=budget).text.strip()
            absent = question.kind == "number" and question.answer == "there is no number."
            right["no number" if absent else question.kind].append(text == question.answer)
            if question.kind == "caption":
                right["things in captions"] += [thing.phrase in text for thing in world.facts.things]
    return {kind: float(np.mean(scores)) for kind, scores in right.items()}


def main(
    model: Annotated[str | None, typer.Argument(help="Folder of the model; the bundled one when absent.")] = None,
    worlds: Annotated[int, typer.Option(help="How many pictures to ask about.")] = 100,
    budget: Annotated[int, typer.Option(help="Visual tokens a picture.")] = 64,
    threads: Annotated[int, typer.Option(help="Threads to use.")] = 1,
) -> None:
    """Print the share of right answers by kind of question, as JSON."""
    torch.set_num_threads(threads)
    shares = accuracy(ARRCOCQwen.from_pretrained(model), worlds, budget)
    print(json.dumps({"worlds": worlds, "budget": budget, "accuracy": shares}, indent=2))


if __name__ == "__main__":
    typer.run(main)
