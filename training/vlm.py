"""Training of the bundled model: `python -m training.vlm --out FOLDER --minutes 55`.

Everything follows from `--seed`, except how many steps fit into the minutes; `--steps` fixes that too. A checkpoint
is written every few minutes, and if the process is asked to end; `--resume` goes on from it, also for a longer or
shorter course: the rate stays until the last part of it, and only then falls. `--begin-with` starts from the weights of
an earlier model. What is kept as the model is the running mean of the weights.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from arr_coc.adaptation.training_run import CURVE, Checkpointable, Length, Means, TrainingRun, schedule
from arr_coc.errors import ArrCocError
from training.curve import draw_curve
from training.export import export
from training.model.batches import BackgroundBatches
from training.model.network import Learner, Losses, begin_with, new_model

CLIP_NORM = 1.0
LOG_STEPS = 20
HEADS_ALONE = 0.01
"""Share of the course in which only the heads learn, if a run begins with the weights of a model."""

MEAN_KEPT = 0.998
"""Of the running mean of the weights, each step: it looks back over about 500 steps."""

_FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_ON_CPU = [SDPBackend.MATH]
"""The fused kernel's backward pass is slower there for the short sequences of few tokens. A step of whole pictures
takes 0.73 s with it and 1.37 s without (two threads)."""


@dataclass(frozen=True)
class Recipe:
    """Length and pace of a training: `steps`, or if None, `minutes` spent on steps. Both include resumed runs.

    `falls_from`: the share of the course until which the rate stays. `lessons_from`: the share of the lessons to leave
    out, if the weights to begin with know them. `keep_words`: the words' embeddings stay as they are, so the
    allocator of the model to begin with fits the new one too. `whole`: lessons show whole pictures of any size, as
    those of a stock model do, and never a choice of tokens.
    """

    minutes: float = 55.0
    steps: int | None = None
    rate: float = 1.2e-3
    matrix_rate: float = 2e-3
    falls_from: float = 0.0
    lessons_from: float = 0.0
    weight_decay: float = 0.05
    seed: int = 1
    threads: int = 1
    checkpoint_minutes: float = 5.0
    device: str = "cpu"
    workers: int = 1
    begin_with: str = ""
    keep_words: bool = False
    compiled: bool = False
    whole: bool = False


class Trainer:
    """A learner and its optimiser; `folder` holds checkpoint, loss curve and model."""

    def __init__(self, recipe: Recipe, folder: Path, *, resume: bool = False) -> None:
        """Raises as `TrainingRun.begin`, `TrainingRun.resume` and `begin_with`."""
        self.recipe = recipe
        model = new_model(recipe.seed, whole=recipe.whole)
        if recipe.begin_with and not resume:
            begin_with(model, Path(recipe.begin_with))
        model.get_input_embeddings().requires_grad_(not recipe.keep_words)
        self.learner = Learner(model).to(recipe.device)
        self.mean = AveragedModel(self.learner.model, multi_avg_fn=get_ema_multi_avg_fn(MEAN_KEPT))
        if recipe.compiled:
            self.learner.compile_parts()
        self.optimisers = optimisers_of(self.learner, recipe)
        parts: dict[str, Checkpointable] = {"learner": self.learner, "mean": self.mean, **self.optimisers}
        self.course = TrainingRun(folder, Length(recipe.minutes, recipe.steps), parts, {})
        self._kind = recipe.device.partition(":")[0]
        self._autocast = quick_in_bfloat16(self._kind)
        self._attention = _ON_CPU if self._kind == "cpu" and not recipe.whole else _FUSED
        self._folder = folder
        if resume:
            self.course.resume(recipe.device)
        else:
            self.course.begin()

    def step(self, batches: BackgroundBatches) -> Losses:
        """One batch, one update, in bfloat16 if that is faster and autocast allows."""
        with self.course.step():
            batch = batches.next().to(self.recipe.device)
            for optimiser in self.optimisers.values():
                for group in optimiser.param_groups:
                    group["lr"] = group["full_rate"] * self._rate_share(of_model=group["known"])
            autocast = torch.autocast(self._kind, torch.bfloat16, enabled=self._autocast)
            with autocast, sdpa_kernel(self._attention):
                losses: Losses = self.learner(batch)
            for optimiser in self.optimisers.values():
                optimiser.zero_grad()
            losses.total.backward()
            torch.nn.utils.clip_grad_norm_(_learning(self.learner), CLIP_NORM)
            for optimiser in self.optimisers.values():
                optimiser.step()
            self.mean.update_parameters(self.learner.model)
        batches.progress.value = self._lessons_progress
        return losses

    def _rate_share(self, *, of_model: bool) -> float:
        """Share of the full rate. Weights that are `of_model`, trained before, wait until the heads know something."""
        progress = self.course.progress
        if of_model and self.recipe.begin_with:
            if progress < HEADS_ALONE:
                return 0.0
            return min(schedule(progress, self.recipe.falls_from), schedule(progress - HEADS_ALONE))
        return schedule(progress, self.recipe.falls_from)

    @property
    def _lessons_progress(self) -> float:
        """Progress of the lessons, in [0, 1]."""
        return self.recipe.lessons_from + (1 - self.recipe.lessons_from) * self.course.progress

    def save(self) -> None:
        """Write the checkpoint, the model as it is in the folder `model`, and the loss curve as a picture."""
        self.course.save()
        export(self.mean.module, self._folder / "model")
        draw_curve(self._folder / CURVE, self._folder / "loss.png")

    def run(self) -> None:
        """Train to the end of the course, or until the process is asked to end (SIGTERM)."""
        asked_to_end: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: asked_to_end.append(number))
        first_seed = self.recipe.seed * 1_000_000 + self.course.steps
        batches = BackgroundBatches(first_seed, self.recipe.workers, whole=self.recipe.whole)
        batches.progress.value = self._lessons_progress
        saved_s = self.course.spent_s
        means = Means()
        try:
            while self.course.progress < 1 and not asked_to_end:
                losses = self.step(batches)
                means.add(token=losses.token, answer=losses.answer, place=losses.place, right_share=losses.right_share)
                if self.course.steps % LOG_STEPS == 0:
                    print(self.course.note(means.take()), flush=True)
                if self.course.spent_s - saved_s > 60 * self.recipe.checkpoint_minutes:
                    saved_s = self.course.spent_s
                    self.save()
        finally:
            batches.close()
            signal.signal(signal.SIGTERM, before)
        self.save()


def optimisers_of(learner: Learner, recipe: Recipe) -> dict[str, torch.optim.Optimizer]:
    """Return Muon (Jordan et al., 2024; its rate scaled as in arXiv:2502.16982) for the matrices inside the encoder and
    the language model, AdamW for embeddings, norms and the heads.

    The groups of each have their `full_rate`, and say whether they are of the model that is kept (`known`).
    """
    model = set(learner.model.parameters())
    embeddings = {module.weight for module in learner.modules() if isinstance(module, torch.nn.Embedding)}
    inner = [
        parameter
        for parameter in _learning(learner)
        if parameter in model and parameter.ndim == 2 and parameter not in embeddings
    ]
    taken = set(inner)
    others = [parameter for parameter in _learning(learner) if parameter not in taken]
    groups = []
    for of_model in (True, False):
        for matrices in (True, False):
            group = [
                parameter
                for parameter in others
                if (parameter in model) == of_model and (parameter.ndim > 1) == matrices
            ]
            decay = recipe.weight_decay if matrices else 0.0
            groups.append({"params": group, "weight_decay": decay, "known": of_model, "full_rate": recipe.rate})
    inner_group: dict[str, Any] = {"params": inner, "known": True, "full_rate": recipe.matrix_rate}
    return {
        "matrices": torch.optim.Muon([inner_group], weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"),
        "optimiser": torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True),
    }


def _learning(learner: Learner) -> list[torch.nn.Parameter]:
    return [parameter for parameter in learner.parameters() if parameter.requires_grad]


def quick_in_bfloat16(kind: str) -> bool:
    """Return True for a GPU, and for a CPU whose instructions multiply in bfloat16: others take three times as long."""
    if kind != "cpu":
        return True
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def main(
    out: Annotated[Path, typer.Option(help="Folder for checkpoint, loss curve and model.")],
    minutes: Annotated[float, typer.Option(help="Time to spend on training steps.")] = Recipe.minutes,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps, instead of minutes.")] = None,
    rate: Annotated[float, typer.Option(help="Full learning rate of embeddings, norms and heads.")] = Recipe.rate,
    matrix_rate: Annotated[float, typer.Option(help="Full learning rate of all other matrices.")] = Recipe.matrix_rate,
    falls_from: Annotated[float, typer.Option(help="Share of the course until which the rate stays.")] = 0.0,
    lessons_from: Annotated[float, typer.Option(help="Share of the lessons to leave out at first.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of weights and pictures.")] = Recipe.seed,
    threads: Annotated[int, typer.Option(help="Threads of the training process.")] = Recipe.threads,
    device: Annotated[str, typer.Option(help="Device to train on: cpu, cuda.")] = Recipe.device,
    workers: Annotated[int, typer.Option(help="Processes that draw.")] = Recipe.workers,
    begin_with: Annotated[str, typer.Option(help="Folder of a model whose weights to begin with.")] = "",
    keep_words: Annotated[bool, typer.Option(help="Leave the words' embeddings as they are.")] = False,
    compiled: Annotated[bool, typer.Option(help="Compile first: two minutes, then faster steps.")] = True,
    whole: Annotated[bool, typer.Option(help="Teach whole pictures only, as a stock model learns.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on from the checkpoint in the folder.")] = False,
) -> None:
    """Train the bundled model on drawn worlds."""
    torch.set_num_threads(threads)
    recipe = Recipe(
        minutes=minutes,
        steps=steps,
        rate=rate,
        matrix_rate=matrix_rate,
        falls_from=falls_from,
        lessons_from=lessons_from,
        seed=seed,
        threads=threads,
        device=device,
        workers=workers,
        begin_with=begin_with,
        keep_words=keep_words,
        compiled=compiled,
        whole=whole,
    )
    try:
        trainer = Trainer(recipe, out, resume=resume)
    except ArrCocError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    (out / "recipe.json").write_text(json.dumps(asdict(trainer.recipe), indent=2) + "\n", "utf-8")
    trainer.run()


if __name__ == "__main__":
    typer.run(main)
