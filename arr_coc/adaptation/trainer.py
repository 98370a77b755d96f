"""`Trainer` of an allocator's layer, and the objectives that it minimises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

from arr_coc.adaptation.cases import Batches
from arr_coc.adaptation.losses import Loss, realised_loss
from arr_coc.adaptation.training_run import Checkpointable, Length, Means, TrainingRun, schedule
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.knowing import DEFAULT_SCORER, QueryScorer

Objective: TypeAlias = Callable[[RelevanceRealiser], torch.Tensor]
"""The loss of a fresh batch."""

RATE = 5e-3
ALONG_RATE = 0.1
ALONG_FROM = 0.5
SAVE_S = 30.0
LOG_STEPS = 100
_CLIP_NORM = 1.0
_WEIGHT_DECAY = 0.02


def new_layer(qwen: QwenVL, scorer: QueryScorer = DEFAULT_SCORER, channels: str = "core13") -> ARRCOCLayer:
    """Return an untrained layer for a model's questions. Raises ProfileError."""
    return qwen.new_allocator(scorer=scorer, channels=channels)


class MapObjective:
    """The loss between relevance and the target of every tile."""

    def __init__(self, batches: Batches, loss: Loss) -> None:
        self._batches = batches
        self._loss = loss

    def __call__(self, realiser: RelevanceRealiser) -> torch.Tensor:
        batch = self._batches.next().to(next(realiser.parameters()).device)
        return realised_loss(realiser(batch.texture, batch.query, batch.prior), batch.target, self._loss)


class Trainer:
    """A layer and its optimiser; `folder` holds checkpoint and loss, `layer_folder` the layer.

    A checkpoint fits if its `made_for` is the same. `along` are layers of the model that learn along
    at a tenth of the rate, in the second half of the training.
    """

    def __init__(
        self,
        layer: ARRCOCLayer,
        folder: Path,
        layer_folder: Path,
        length: Length,
        *,
        rate: float = RATE,
        made_for: Mapping[str, str] | None = None,
        along: nn.ModuleList | None = None,
    ) -> None:
        self.layer = layer
        self._layer_folder = layer_folder
        self._rate = rate
        self._along = nn.ModuleList() if along is None else along
        groups = [{"params": list(layer.parameters())}, {"params": list(self._along.parameters())}]
        self.optimiser = torch.optim.AdamW(groups, weight_decay=_WEIGHT_DECAY)
        parts: dict[str, Checkpointable] = {"layer": layer, "along": self._along, "optimiser": self.optimiser}
        fits = {
            "trained_for": layer.config.trained_for,
            "scorer": layer.config.scorer,
            "channels": layer.config.channels,
            **(made_for or {}),
        }
        self.course = TrainingRun(folder, length, parts, fits)

    def step(self, objective: Objective) -> float:
        """One batch, one update; returns the loss."""
        with self.course.step():
            rate = self._rate * schedule(self.course.progress)
            for group, share in zip(self.optimiser.param_groups, (1.0, ALONG_RATE), strict=True):
                group["lr"] = rate * share
            self._along.requires_grad_(self.course.progress >= ALONG_FROM)
            loss = objective(self.layer.realiser)
            self.optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.layer.parameters(), _CLIP_NORM)
            self.optimiser.step()
        return loss.item()

    def run(
        self,
        objective: Objective,
        on_step: Callable[[], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        """Train to the end of the course, or until `should_stop`, and save; `on_step` is called after every step."""
        means = Means()
        saved_s = self.course.spent_s
        while self.course.progress < 1 and not (should_stop and should_stop()):
            means.add(loss=self.step(objective))
            if on_step is not None:
                on_step()
            if self.course.steps % LOG_STEPS == 0:
                self.course.note(means.take())
            if self.course.spent_s - saved_s > SAVE_S:
                saved_s = self.course.spent_s
                self.save()
        self.save()

    def save(self) -> None:
        """Write checkpoint and layer, each whole or not at all."""
        self.course.save()
        self.layer.save_pretrained(self._layer_folder)
