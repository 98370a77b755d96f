"""Calibration of a model's yes: its raw odds against drawn scenes whose truth is known, fitted and kept in its folder.

    python -m training.calibration [--model FOLDER] [--scenes 120] [--write]

The odds of yes are those of one look (`arr_coc.qwen.yes_no`). A line through their logarithms is fitted so that they
are those of being right (Platt scaling: Platt, "Probabilistic outputs for support vector machines", 1999); half of the
questions count as ones that are right to answer with yes. With --write, `config.json` gets it as `arr_coc_yes_no`.
Fonts, words and unseen words are those of training; `python -m evaluation.presence` measures on the others.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.hub import bundled_model_path
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.yes_no import CONFIG_KEY, Calibration
from arr_coc.types import FrameStamp
from arr_coc.video.picture_allocator import PictureAllocator
from training.questions.presence import KINDS, Kind, PresenceScene, presence_scenes

SEED = 31
SCENES = 120
_STEPS = 50
_RIDGE = 1e-3
"""Keeps the fit finite if the odds separate yes from no without error."""
_SETTLED = 1e-9


@dataclass(frozen=True, slots=True)
class MeasuredOdds:
    """One question's kind, and the raw logarithm of the odds of yes."""

    kind: Kind
    question: str
    log_odds: float


def measure(qwen: QwenVL, scenes: Iterable[PresenceScene]) -> Iterator[MeasuredOdds]:
    """A model's odds for every question, with the tokens that a run would choose by default."""
    session = AnswerSession(qwen, AnswerOptions("sparse", feedback=False))
    for number, scene in enumerate(scenes):
        for presence in scene.questions:
            allocator = PictureAllocator(qwen, presence.question, AllocatorOptions(explore=0.0))
            packet = allocator.allocate(scene.image, FrameStamp(number, 0, 0))
            yield MeasuredOdds(
                presence.kind, presence.question, session.score_yes_no(packet, presence.question).raw_log_odds
            )


def fit(measurements: Sequence[MeasuredOdds]) -> Calibration:
    """The calibration under which the measurements are likeliest, by Newton's method.

    Questions that are right to answer with yes count half; the other kinds share the rest evenly.
    """
    kinds = [
        kind for kind in KINDS if kind != "present" and any(measurement.kind == kind for measurement in measurements)
    ]
    shares = {kind: 0.5 / len(kinds) for kind in kinds} | {"present": 0.5}
    odds = np.array([measurement.log_odds for measurement in measurements])
    labels = np.array([measurement.kind == "present" for measurement in measurements], np.float64)
    weights = np.array(
        [
            shares[measurement.kind] / sum(other.kind == measurement.kind for other in measurements)
            for measurement in measurements
        ]
    )
    line = np.array([1.0, 0.0])
    columns = np.stack([odds, np.ones_like(odds)], axis=1)

    def loss(line: npt.NDArray[np.float64]) -> float:
        logits = columns @ line
        return float(weights @ (np.logaddexp(0, logits) - labels * logits) + _RIDGE / 2 * line @ line)

    for _ in range(_STEPS):
        chance = _sigmoid(columns @ line)
        slope = columns.T @ (weights * (chance - labels)) + _RIDGE * line
        curve = (columns * (weights * chance * (1 - chance))[:, None]).T @ columns + _RIDGE * np.eye(2)
        step, current_loss = np.linalg.solve(curve, slope), loss(line)
        while np.abs(step).max() > _SETTLED and loss(line - step) > current_loss:
            step = step / 2  # a whole step of Newton's leaps past the least if many odds are far from even
        line = line - step
    return Calibration(scale=round(float(line[0]), 4), bias=round(float(line[1]), 4))


def _sigmoid(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(0.5 * (1 + np.tanh(values / 2)))


def write(folder: Path, calibration: Calibration) -> None:
    """Save a calibration in the model's `config.json`."""
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text("utf-8"))
    config[CONFIG_KEY] = {"scale": calibration.scale, "bias": calibration.bias}
    path.write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="the model's folder; the bundled model when absent")
    parser.add_argument("--scenes", type=int, default=SCENES)
    parser.add_argument("--write", action="store_true", help="keep it in the model's config.json")
    options = parser.parse_args()
    logging.getLogger("arr_coc").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    folder = options.model or bundled_model_path()
    measurements = list(measure(load_qwen(folder), presence_scenes(options.scenes, "train", SEED)))
    calibration = fit(measurements)
    threshold = -calibration.bias / calibration.scale
    print(f"scale {calibration.scale}, bias {calibration.bias}: yes from raw odds of {math.exp(threshold):.1f} to 1 on")
    if options.write:
        write(folder, calibration)


if __name__ == "__main__":
    main()
