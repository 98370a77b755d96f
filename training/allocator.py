"""Training of a model's allocator: `python -m training.allocator --model models/scenes-tiny --out FOLDER --how boxes`.

Only the allocator's scorers and balancer learn, not the model. What is learned from is drawn: see `allocator_cases`.

| how | learns from |
| --- | --- |
| `boxes` | boxes of the things that a question asks about |
| `attention` | what the model attends to before it answers, shown all tokens |
| `answer` | the model's loss on the answer, shown only the chosen tokens |
| `streams` | the same boxes, in frames in a row that the layer itself allocates, as in a run |

The folder gets a checkpoint every half minute, from which `--resume` goes on, the loss as JSON Lines, and in `arr_coc`
the layer itself, to be laid into the model's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import cv2
import numpy as np
import torch
import typer
from torch import nn

from arr_coc.adaptation.cases import Batches, Embedder
from arr_coc.adaptation.losses import attention_targets, box_loss
from arr_coc.adaptation.trainer import RATE, MapObjective, Objective, Trainer, new_layer
from arr_coc.adaptation.training_run import Length
from arr_coc.errors import ArrCocError, ModelError, OptionError
from arr_coc.hub import ALLOCATOR_FOLDER
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.knowing import DEFAULT_SCORER, QueryScorer
from training.cases import FIRST_TRAINED, cases_of, random_samples
from training.objectives import AnswerLoss, attended, last_layers
from training.past import GlancedPast, fit_axes
from training.streams import StreamLoss

ObjectiveName = Literal["boxes", "attention", "answer", "streams"]
RATES: dict[ObjectiveName, float] = {"boxes": RATE, "attention": RATE, "answer": 1e-3, "streams": 3e-3}
ATTENDED_SHARE, ANSWERED_SHARE = 1 / 16, 1 / 5
"""If the model itself must look at every clip, this share of them is drawn."""

AXES_CLIPS = 32
"""Clips whose first frames' embeddings give the principal components used as axes."""

ANSWERED_TILES = 2048
"""Tiles of all pictures of a batch together that the model answers about."""


@dataclass(frozen=True)
class Recipe:
    """Settings of a training: what is trained, how long, and from how many drawn clips.

    Training takes `steps` steps, or if that is None, `minutes` spent on steps. Both include resumed runs.
    `rate` 0: the one that suits the way of training. `channels`: the profile that the scorers see; with `past`, each
    picture is learned from as one of which nothing is known, and after a glance at it (`boxes` only).
    """

    objective: ObjectiveName = "boxes"
    minutes: float = 3.0
    seed: int = 1
    rate: float = 0.0
    clips: int = 2500
    steps: int | None = None
    scorer: QueryScorer = DEFAULT_SCORER
    channels: str = "core13"
    past: bool = False


def make_trainer(recipe: Recipe, layer: ARRCOCLayer, folder: Path, along: nn.ModuleList | None = None) -> Trainer:
    """Return a trainer of a layer.

    Args:
        recipe: Settings of the training.
        layer: Layer that is trained.
        folder: Folder of the checkpoint and the loss, and in `arr_coc` of the layer.
        along: Modules of the model that are trained too.
    """
    return Trainer(
        layer,
        folder,
        folder / ALLOCATOR_FOLDER,
        Length(recipe.minutes, recipe.steps),
        rate=recipe.rate or RATES[recipe.objective],
        made_for={"how": recipe.objective, "past": str(recipe.past)},
        along=along,
    )


def boxes_objective(recipe: Recipe, qwen: QwenVL, layer: ARRCOCLayer, rng: np.random.Generator) -> Objective:
    """Objective from the boxes of the things asked about."""
    samples = random_samples("train", FIRST_TRAINED, recipe.clips)
    past = GlancedPast(qwen, layer) if recipe.past else None
    cases = cases_of(samples, channels=recipe.channels, past=past)
    return MapObjective(Batches(cases, Embedder(qwen), rng), box_loss)


def attention_objective(recipe: Recipe, qwen: QwenVL, layer: ARRCOCLayer, rng: np.random.Generator) -> Objective:
    """Objective from the model's own attention, which is read first."""
    samples = random_samples("train", FIRST_TRAINED, int(recipe.clips * ATTENDED_SHARE))
    cases = (replace(case, target=attention_targets(case.target)) for case in attended(samples, qwen, recipe.channels))
    return MapObjective(Batches(cases, Embedder(qwen), rng), box_loss)


def answer_objective(recipe: Recipe, qwen: QwenVL, layer: ARRCOCLayer, rng: np.random.Generator) -> Objective:
    """Objective from the loss of the model's answer."""
    samples = random_samples("train", FIRST_TRAINED, int(recipe.clips * ANSWERED_SHARE))
    stills = (sample for sample in samples if len(sample.clip.frames) == 1)
    batches = Batches(
        cases_of(stills, with_images=True, channels=recipe.channels), Embedder(qwen), rng, tiles=ANSWERED_TILES
    )
    return AnswerLoss(qwen, batches, rng)


def streams_objective(recipe: Recipe, qwen: QwenVL, layer: ARRCOCLayer, rng: np.random.Generator) -> Objective:
    """Objective from boxes in streams, as many in each round as the recipe has clips."""
    return StreamLoss(qwen, layer, rng, range(FIRST_TRAINED, FIRST_TRAINED + recipe.clips))


OBJECTIVES: dict[str, Callable[[Recipe, QwenVL, ARRCOCLayer, np.random.Generator], Objective]] = {
    "boxes": boxes_objective,
    "attention": attention_objective,
    "answer": answer_objective,
    "streams": streams_objective,
}


def _begin_with(layer: ARRCOCLayer, folder: Path) -> None:
    """Load the weights of a folder; the layer keeps its own model."""
    base = ARRCOCLayer.from_pretrained(folder)
    if base.config.query_dim != layer.config.query_dim:
        widths = f"{base.config.query_dim} wide, this model's {layer.config.query_dim}"
        raise ModelError(f"{folder} is of a model whose embeddings are {widths}; begin without it")
    layer.load_state_dict(base.state_dict())


def train(
    model: Path | str, recipe: Recipe, out: Path, *, resume: bool = False, begin_with: Path | None = None
) -> ARRCOCLayer:
    """Train an allocator for a model.

    Args:
        model: Folder of the model.
        recipe: Settings of the training.
        out: Folder for the layer, the checkpoint and the loss.
        resume: Continue from the checkpoint in `out`.
        begin_with: Folder of a layer whose weights are the initial ones; None for a new layer.

    Raises:
        OptionError: The objective is unknown.
        ModelError: The layer does not fit the model's embeddings.

    Raises also as `TrainingRun.begin`, `TrainingRun.resume`, `load_qwen` and `ARRCOCLayer.from_pretrained`.
    """
    if recipe.objective not in OBJECTIVES:
        raise OptionError(f"unknown way of training {recipe.objective!r}; there are {', '.join(OBJECTIVES)}")
    qwen = load_qwen(model, device="cpu")
    torch.manual_seed(recipe.seed)
    layer = new_layer(qwen, recipe.scorer, recipe.channels)
    if layer.realiser.axes is not None:
        samples = random_samples("train", FIRST_TRAINED, min(recipe.clips, AXES_CLIPS), questions=1)
        fit_axes(layer.realiser.axes, qwen, (sample.clip.frames[0] for sample in samples))
    if begin_with is not None:
        _begin_with(layer, begin_with)
    trainer = make_trainer(recipe, layer, out, last_layers(qwen) if recipe.objective == "answer" else None)
    if resume:
        trainer.course.resume()
    else:
        trainer.course.begin()
    if trainer.course.progress < 1:
        rng = np.random.default_rng([recipe.seed, trainer.course.steps])
        trainer.run(OBJECTIVES[recipe.objective](recipe, qwen, layer, rng))
    return trainer.layer


def main(
    out: Annotated[Path, typer.Option(help="Folder for checkpoint, loss and layer.")],
    model: Annotated[str, typer.Option(help="The model: a folder, or a name on the hub.")] = "models/scenes-tiny",
    how: Annotated[
        str, typer.Option(help="What to learn from: boxes, attention, answer or streams.")
    ] = Recipe.objective,
    minutes: Annotated[float, typer.Option(help="Time to spend on training steps.")] = Recipe.minutes,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps, instead of minutes.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = Recipe.seed,
    clips: Annotated[int, typer.Option(help="Drawn clips to learn from.")] = Recipe.clips,
    channels: Annotated[
        str, typer.Option(help="Channels: core13, or experimental: full40, full40+text.")
    ] = Recipe.channels,
    past: Annotated[
        bool, typer.Option("--past", help="With boxes: learn from each picture after a glance at it, too.")
    ] = False,
    begin_with: Annotated[Path | None, typer.Option(help="Begin with the layer in this folder.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the checkpoint in the folder.")] = False,
) -> None:
    """Train the allocator of a model on drawn clips."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    try:
        recipe = Recipe(how, minutes, seed, clips=clips, steps=steps, channels=channels, past=past)  # type: ignore[arg-type]
        train(model, recipe, out, resume=resume, begin_with=begin_with)
    except ArrCocError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
