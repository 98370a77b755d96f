"""`TrainingRun`: progress, checkpoint and loss curve of a training; learning-rate schedule."""

from __future__ import annotations

import io
import json
import math
import pickle
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from arr_coc.errors import ModelError, ModelNotFound
from arr_coc.layer import write_whole

CHECKPOINT = "checkpoint.pt"
CURVE = "loss.jsonl"
WARM_UP = 0.01
LEAST_RATE = 0.01


class Checkpointable(Protocol):
    """A network or an optimiser."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


@dataclass(frozen=True)
class Length:
    """Length of a training. `steps` wins over `minutes`, and makes the result independent of the machine's speed."""

    minutes: float
    steps: int | None = None


class TrainingRun:
    """Counter of steps and the time spent on them, kept in `folder` with the state of all `parts`.

    Training ends after `length.steps` steps, or if that is None, after `length.minutes` spent on steps.
    `made_for` lists the other values that must be the same for a checkpoint to fit.
    """

    def __init__(
        self, folder: Path, length: Length, parts: Mapping[str, Checkpointable], made_for: Mapping[str, str]
    ) -> None:
        self.steps = 0
        self.spent_s = 0.0
        self._length = length
        self._folder = folder
        self._parts = parts
        self._made_for = dict(made_for)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def progress(self) -> float:
        """Share of the training that is done, in [0, 1]."""
        if self._length.steps is not None:
            return min(1.0, self.steps / self._length.steps)
        return min(1.0, self.spent_s / (60 * self._length.minutes))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count the work done meanwhile as one step."""
        started_s = time.perf_counter()
        yield
        self.steps += 1
        self.spent_s += time.perf_counter() - started_s

    def note(self, figures: Mapping[str, float]) -> str:
        """Add a line to the loss curve, and return it."""
        line = json.dumps({"step": self.steps, "minutes": round(self.spent_s / 60, 2), **figures})
        with (self._folder / CURVE).open("a", encoding="utf-8") as curve:
            curve.write(line + "\n")
        return line

    def begin(self) -> None:
        """Begin anew. Raises ModelError if the folder holds the checkpoint or the curve of an earlier run."""
        for name in (CHECKPOINT, CURVE):
            if (self._folder / name).exists():
                raise ModelError(f"{self._folder} holds the {name} of an earlier run; give --resume, or a new folder")

    def save(self) -> None:
        """Write the checkpoint, whole or not at all. Raises OSError."""
        state = {name: part.state_dict() for name, part in self._parts.items()}
        buffer = io.BytesIO()
        torch.save({**state, **self._made_for, "steps": self.steps, "spent_s": self.spent_s}, buffer)
        write_whole(self._folder / CHECKPOINT, buffer.getvalue())

    def resume(self, device: str = "cpu") -> None:
        """Continue from the checkpoint. Raises ModelNotFound if it is missing, ModelError if it does not fit."""
        path = self._folder / CHECKPOINT
        if not path.is_file():
            raise ModelNotFound(f"{self._folder} holds no {CHECKPOINT}; leave out --resume to begin")
        try:
            state = torch.load(path, weights_only=True, map_location=device)
            if {name: state[name] for name in self._made_for} != self._made_for:
                raise ValueError("it was made in another way, or for other weights of the model")
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
            self.steps = state["steps"]
            self.spent_s = state["spent_s"]
        except (RuntimeError, ValueError, TypeError, KeyError, EOFError, pickle.UnpicklingError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
            raise ModelError(f"{path} does not fit: {reason}; begin anew in another folder") from error
        curve = self._folder / CURVE
        if curve.is_file():  # without the steps after the checkpoint
            lines = curve.read_text("utf-8").splitlines(keepends=True)
            curve.write_text("".join(line for line in lines if json.loads(line)["step"] <= self.steps), "utf-8")


class Means:
    """Running means of figures since they were last taken."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)

    def add(self, **figures: float | None) -> None:
        """Add the figures that are not None."""
        for name, value in figures.items():
            if value is not None:
                self._values[name].append(value)

    def take(self) -> dict[str, float]:
        """Return the means, forgotten once taken."""
        means = {name: round(sum(values) / len(values), 4) for name, values in self._values.items()}
        self._values.clear()
        return means


def schedule(progress: float, falls_from: float = 0.0) -> float:
    """Return the share of the full learning rate: it rises for the first hundredth of the time, stays, and falls along
    a cosine.

    `falls_from` in [0, 1): it stays until this share of the time.
    """
    if progress < WARM_UP:
        return max(progress / WARM_UP, 0.02)
    falls_from = max(falls_from, WARM_UP)
    past = max(0.0, progress - falls_from) / (1 - falls_from)
    return LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * past))
