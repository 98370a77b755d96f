"""`FineTuning`: a model learns from pictures, questions and answers, with a checkpoint and a curve of its loss."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from arr_coc.adaptation.training_run import Checkpointable, Length, Means, TrainingRun, schedule
from arr_coc.errors import ArrCocError, NonFiniteError, OptionError
from arr_coc.finetune.collator import AnswerCollator
from arr_coc.finetune.module import TrainableQwen
from arr_coc.finetune.parts import LearningRates
from arr_coc.texture.pictures import to_rgb

log = logging.getLogger(__name__)

SAVE_STEPS = 200
"""Between two checkpoints: counted, because all processes write one together."""

LOG_STEPS = 10
CLIP_NORM = 1.0
UNREADABLE_IN_A_ROW = 50

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True, strict=False)
"""States of checkpoints: of what learns, gathered from all processes."""


@dataclass(frozen=True, slots=True)
class FineTuneOptions:
    """Length of a training, examples of a step in each process, and rates."""

    steps: int = 1000
    batch: int = 8
    rates: LearningRates = field(default_factory=LearningRates)
    seed: int = 1


class FineTuning:
    """A training of a model, with its checkpoint and loss curve in `folder`; each example is drawn at random.

    Examples are those of `AnswerCollator` with one `image` each. A picture that cannot be read is left out, named in
    the log and counted. In several processes of `torch.distributed` each draws its own examples, and the first one
    writes.
    """

    unread = 0
    """Pictures that could not be read."""

    def __init__(
        self,
        model: TrainableQwen,
        examples: Sequence[Mapping[str, Any]],
        folder: Path,
        options: FineTuneOptions,
        made_for: Mapping[str, str] | None = None,
    ) -> None:
        """Raise OptionError as `LearningRates.groups`.

        Args:
            model: A model, sharded or not; what does not learn is frozen.
            examples: Mappings of `image`, `question` and `answer`.
            folder: Folder of checkpoint and curve.
            options: How long, and at which rates.
            made_for: What else must be the same for a checkpoint to fit.
        """
        self._model = model
        self._examples = examples
        self._options = options
        self._collate = AnswerCollator(model.qwen)
        self._optimiser = torch.optim.AdamW(options.rates.groups(model), weight_decay=0.0)
        self._rates = [group["lr"] for group in self._optimiser.param_groups]
        self._rank = distributed.get_rank() if distributed.is_initialized() else 0
        self._parts: dict[str, Checkpointable] = {
            "learned": _Learned(model),
            "optimiser": _OptimiserState(model, self._optimiser),
        }
        fits = {"rates": str(options.rates), "seed": str(options.seed), **(made_for or {})}
        self.course = TrainingRun(folder, Length(0.0, options.steps), self._parts, fits)

    def begin(self, *, resume: bool) -> None:
        """Begin anew, or go on from the checkpoint. Raises ModelError and ModelNotFound as `TrainingRun`."""
        if resume:
            self.course.resume()
        elif self._rank == 0:
            self.course.begin()

    def run(
        self, on_step: Callable[[int, float], None] | None = None, should_stop: Callable[[], bool] | None = None
    ) -> bool:
        """Train to the end, or until `should_stop`, and write the checkpoint; return whether the end was reached.

        `on_step` is called after each step, with its number and its loss. Raises NonFiniteError if the loss is NaN or
        Inf; the last checkpoint is then as it was. Raises OptionError if no picture can be read.
        """
        means = Means()
        self._model.train()
        try:
            while self.course.progress < 1 and not self._stops(should_stop):
                loss = self._step()
                means.add(loss=loss)
                if on_step is not None:
                    on_step(self.course.steps, loss)
                if self.course.steps % LOG_STEPS == 0 and self._rank == 0:
                    self.course.note(means.take())
                if self.course.steps % SAVE_STEPS == 0:
                    self._save()
        finally:
            self._model.eval()
        self._save()
        return self.course.progress >= 1

    def learned(self) -> dict[str, Any]:
        """Return the weights that learn, by name, on the CPU.

        Every process must call it, and the first one has them.
        """
        state: dict[str, Any] = self._parts["learned"].state_dict()
        return state

    def _step(self) -> float:
        with self.course.step():
            share = schedule(self.course.progress)
            for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
                group["lr"] = rate * share
            rng = np.random.default_rng([self._options.seed, self.course.steps, self._rank])
            batch = self._collate([self._example(rng) for _ in range(self._options.batch)])
            device = self._model.qwen.device
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = self._model(**{name: rows.to(device) for name, rows in batch.items()}).loss
            value = float(loss.detach())
            if not math.isfinite(value):
                raise NonFiniteError("the loss is NaN or Inf; lower the rates, and go on from the last checkpoint")
            self._optimiser.zero_grad()
            loss.backward()
            learned = [weight for group in self._optimiser.param_groups for weight in group["params"]]
            torch.nn.utils.clip_grad_norm_(learned, CLIP_NORM)
            self._optimiser.step()
        return value

    def _example(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """Draw an example, with its picture read."""
        for _ in range(UNREADABLE_IN_A_ROW):
            example = self._examples[int(rng.integers(len(self._examples)))]
            try:
                return {**example, "image": to_rgb(example["image"])}
            except (ArrCocError, OSError) as error:
                self.unread += 1
                log.warning("a picture is left out: %s", error)
        raise OptionError(f"{UNREADABLE_IN_A_ROW} pictures in a row cannot be read", "download them again")

    def _stops(self, should_stop: Callable[[], bool] | None) -> bool:
        """Return whether any process is to stop: all of them stop after the same step."""
        stop = should_stop is not None and should_stop()
        if not distributed.is_initialized():
            return stop
        flag = torch.tensor(float(stop), device=self._model.qwen.device)
        distributed.all_reduce(flag)
        return bool(flag > 0)

    def _save(self) -> None:
        """Write the checkpoint. All processes gather it, and the first one writes."""
        if self._rank == 0:
            self.course.save()
        else:
            for part in self._parts.values():
                part.state_dict()


class _Learned:
    """State of the weights that learn."""

    def __init__(self, model: TrainableQwen) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        return get_model_state_dict(self._model, options=WHOLE)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_model_state_dict(self._model, state, options=WHOLE)


class _OptimiserState:
    """State of an optimiser, by the names of the weights."""

    def __init__(self, model: TrainableQwen, optimiser: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimiser = optimiser

    def state_dict(self) -> dict[str, Any]:
        return get_optimizer_state_dict(self._model, self._optimiser, options=WHOLE)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_optimizer_state_dict(self._model, self._optimiser, state, options=WHOLE)
