"""Trains the bundled model: `python -m training.vlm --out FOLDER --minutes 55`.

Everything follows from `--seed`, but for how many steps fit into the minutes. A checkpoint is written every few
minutes; `--resume` goes on from it. The learning rate rises for the first hundredth of the time and falls along a
cosine. `--begin-with` starts from the weights of an earlier model.
"""

from __future__ import annotations

import json
import math
import pickle
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch.nn.attention import SDPBackend, sdpa_kernel

from arr_coc.errors import ArrCocError, ModelError, ModelNotFound
from training.batches import BackgroundBatches
from training.curves import draw_curve
from training.export import export
from training.inherit import begin_with
from training.network import Learner, Losses, new_model

WARM_UP = 0.01
LEAST_RATE = 0.01
CLIP_NORM = 1.0
LOG_STEPS = 20

_ATTENTION = {
    "cpu": [SDPBackend.MATH],  # the fused kernel's backward pass is slower there for so short sequences
    "cuda": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
}


@dataclass(frozen=True)
class Recipe:
    """How long and how fast. `minutes` is the time spent on steps, resumed runs included."""

    minutes: float = 55.0
    rate: float = 1.2e-3
    weight_decay: float = 0.05
    seed: int = 1
    threads: int = 1
    checkpoint_minutes: float = 5.0
    device: str = "cpu"
    workers: int = 1
    begin_with: str = ""


class Trainer:
    """A learner, its optimiser, and how far it is; `folder` holds checkpoint and loss curve."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe = recipe
        model = new_model(recipe.seed)
        if recipe.begin_with:
            begin_with(model, Path(recipe.begin_with))
        self.learner = Learner(model).to(recipe.device)
        decayed = [p for p in self.learner.parameters() if p.ndim > 1]
        others = [p for p in self.learner.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98))
        self.steps = 0
        self.spent_s = 0.0
        self._kind = recipe.device.partition(":")[0]
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def progress(self) -> float:
        """Share of the time that is spent, in [0, 1]."""
        return min(1.0, self.spent_s / (60 * self.recipe.minutes))

    def step(self, batches: BackgroundBatches) -> Losses:
        """One batch, one update, in bfloat16 where autocast allows."""
        started_s = time.perf_counter()
        batch = batches.next().to(self.recipe.device)
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate * schedule(self.progress)
        with torch.autocast(self._kind, torch.bfloat16), sdpa_kernel(_ATTENTION[self._kind]):
            losses: Losses = self.learner(batch)
        self.optimiser.zero_grad()
        losses.total.backward()
        torch.nn.utils.clip_grad_norm_(self.learner.parameters(), CLIP_NORM)
        self.optimiser.step()
        self.steps += 1
        self.spent_s += time.perf_counter() - started_s
        batches.progress.value = self.progress
        return losses

    def save(self) -> None:
        """Writes the checkpoint, whole or not at all, and the model as it is in the folder `model`."""
        state = {"learner": self.learner.state_dict(), "optimiser": self.optimiser.state_dict()}
        new = self._folder / "checkpoint.new"
        torch.save({**state, "steps": self.steps, "spent_s": self.spent_s}, new)
        new.replace(self._folder / "checkpoint.pt")
        export(self.learner.model, self._folder / "model")
        draw_curve(self._folder / "loss.jsonl", self._folder / "loss.png")

    def resume(self) -> None:
        """Goes on from the checkpoint. Raises ModelNotFound where there is none, ModelError where it does not fit."""
        path = self._folder / "checkpoint.pt"
        if not path.is_file():
            raise ModelNotFound(f"{path} is not there; leave --resume out to begin a run")
        try:
            state = torch.load(path, weights_only=True, map_location=self.recipe.device)
            self.learner.load_state_dict(state["learner"])
            self.optimiser.load_state_dict(state["optimiser"])
        except (RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError) as error:
            reason = str(error).splitlines()[0]
            raise ModelError(f"{path} does not fit this version's model ({reason}); begin a new run") from error
        self.steps, self.spent_s = state["steps"], state["spent_s"]
        self._forget_after(self.steps)

    def _forget_after(self, steps: int) -> None:
        """Takes out of the loss curve what the checkpoint does not hold."""
        curve = self._folder / "loss.jsonl"
        if curve.is_file():
            lines = curve.read_text("utf-8").splitlines(keepends=True)
            curve.write_text("".join(line for line in lines if json.loads(line)["step"] <= steps), "utf-8")

    def run(self) -> None:
        """Trains until the time is spent."""
        batches = BackgroundBatches(self.recipe.seed * 1_000_000 + self.steps, self.recipe.workers)
        saved_s = self.spent_s
        means = Means()
        try:
            with (self._folder / "loss.jsonl").open("a", encoding="utf-8") as curve:
                while self.progress < 1:
                    means.add(self.step(batches))
                    if self.steps % LOG_STEPS == 0:
                        line = json.dumps({"step": self.steps, "minutes": round(self.spent_s / 60, 2), **means.take()})
                        print(line, file=curve, flush=True)
                        print(line, flush=True)
                    if self.spent_s - saved_s > 60 * self.recipe.checkpoint_minutes:
                        saved_s = self.spent_s
                        self.save()
        finally:
            batches.close()
        self.save()


class Means:
    """Running means of the losses since they were last taken."""

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = defaultdict(list)

    def add(self, losses: Losses) -> None:
        for name in ("answer", "token", "right_share"):
            value = getattr(losses, name)
            if value is not None:
                self._seen[name].append(value)

    def take(self) -> dict[str, float]:
        """The means, forgotten once taken."""
        means = {name: round(sum(values) / len(values), 4) for name, values in self._seen.items()}
        self._seen.clear()
        return means


def schedule(progress: float) -> float:
    """Share of the full learning rate."""
    if progress < WARM_UP:
        return max(progress / WARM_UP, 0.02)
    past = (progress - WARM_UP) / (1 - WARM_UP)
    return LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * past))


def main(
    out: Annotated[Path, typer.Option(help="Folder for checkpoint, loss curve and model.")],
    minutes: Annotated[float, typer.Option(help="Time to spend on training steps.")] = Recipe.minutes,
    seed: Annotated[int, typer.Option(help="Seed of weights and pictures.")] = Recipe.seed,
    threads: Annotated[int, typer.Option(help="Threads of the training process.")] = Recipe.threads,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda.")] = Recipe.device,
    workers: Annotated[int, typer.Option(help="Processes that draw.")] = Recipe.workers,
    begin_with: Annotated[str, typer.Option(help="Folder of a model whose weights to begin with.")] = "",
    resume: Annotated[bool, typer.Option(help="Go on from the checkpoint in the folder.")] = False,
) -> None:
    """Train the bundled model on drawn worlds."""
    torch.set_num_threads(threads)
    recipe = Recipe(minutes=minutes, seed=seed, threads=threads, device=device, workers=workers, begin_with=begin_with)
    try:
        trainer = Trainer(recipe, out)
        if resume:
            trainer.resume()
    except ArrCocError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    (out / "recipe.json").write_text(json.dumps(asdict(trainer.recipe), indent=2) + "\n", "utf-8")
    trainer.run()


if __name__ == "__main__":
    typer.run(main)
