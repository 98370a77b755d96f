"""Error rate of a yes to a standing query: drawn scenes, asked for what they hold and for what they do not.

    python -m evaluation.presence [--model FOLDER] [--scenes 120] [--out FILE]

One look at each picture and question (`stream`'s `--until` takes several before it believes an unsure one). A look says
yes from a probability of `yes_above` on, and surely yes from `sure` on; both are the defaults of a run. Figures:

- `true_yes`: the share of present things that are seen; `false_yes`: of absent ones, by kind of question;
  `surely` likewise.
- `auc`: share of pairs in which a present thing gets more than an absent one; calibration does not move it.
- `unseen`: the share of questions of a kind that a run refuses, because the model has never seen one of their words.

`before` takes the model's own odds, `after` those of its calibration, fitted on other scenes, fonts and words.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.hub import bundled_model_path
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.yes_no import NEUTRAL, Calibration
from stream.config import WatchConfig
from stream.monitor.machine import machine
from stream.recording.identity import fingerprint
from training.calibration import MeasuredOdds, measure
from training.questions.presence import KINDS, presence_scenes

RESULTS = Path(__file__).parent / "results" / "presence.json"
SEED = 32
SCENES = 120


def rates(samples: Sequence[MeasuredOdds], calibration: Calibration, watch: WatchConfig) -> dict[str, Any]:
    """True and false yes of single looks, read with a calibration."""
    figures: dict[str, Any] = {}
    for kind in KINDS:
        yes = [_chance(sample, calibration) for sample in samples if sample.kind == kind]
        if not yes:
            continue
        figures[kind] = {
            "true_yes" if kind == "present" else "false_yes": _share(yes, watch.threshold),
            "surely": _share(yes, watch.sure),
        }
    return figures


def auc(samples: Sequence[MeasuredOdds], kind: str) -> float | None:
    """Share of pairs in which a present thing gets more than an absent one, in questions of a kind; ties count half."""
    present = np.array([sample.log_odds for sample in samples if sample.kind == "present"])
    absent = np.array([sample.log_odds for sample in samples if sample.kind == kind])
    if not len(present) or not len(absent):
        return None
    above = (present[:, None] > absent).mean() + 0.5 * (present[:, None] == absent).mean()
    return round(float(above), 3)


def report(samples: Sequence[MeasuredOdds], refusals: Sequence[bool], calibration: Calibration) -> dict[str, Any]:
    """All figures; `refusals` says of each question whether a run would refuse it."""
    watch = WatchConfig(question="is it?")
    refusals_by_kind = {
        kind: [refused for sample, refused in zip(samples, refusals, strict=True) if sample.kind == kind]
        for kind in KINDS
    }
    return {
        "questions": {kind: len(flags) for kind, flags in refusals_by_kind.items()},
        "yes_above": watch.threshold,
        "sure": watch.sure,
        "calibration": {"scale": calibration.scale, "bias": calibration.bias},
        "auc": {kind: auc(samples, kind) for kind in KINDS if kind != "present"},
        "unseen": {kind: round(sum(flags) / len(flags), 3) for kind, flags in refusals_by_kind.items() if flags},
        "before": rates(samples, NEUTRAL, watch),
        "after": rates(samples, calibration, watch),
    }


def _chance(sample: MeasuredOdds, calibration: Calibration) -> float:
    return 0.5 * (1 + math.tanh((calibration.scale * sample.log_odds + calibration.bias) / 2))


def _share(chances: Sequence[float], least: float) -> float:
    return round(sum(chance >= least for chance in chances) / len(chances), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="the model's folder; the bundled model when absent")
    parser.add_argument("--scenes", type=int, default=SCENES)
    parser.add_argument("--out", type=Path, default=RESULTS, help="path of the JSON")
    options = parser.parse_args()
    logging.getLogger("arr_coc").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    qwen = load_qwen(options.model)
    samples = list(measure(qwen, presence_scenes(options.scenes, "test", SEED)))
    refusals = [bool(qwen.unseen_words(sample.question)) for sample in samples]
    folder = options.model or bundled_model_path()
    result = {
        "machine": machine(),
        "model": str(options.model.name) if options.model else "bundled",
        "weights": fingerprint(folder / "model.safetensors") if (folder / "model.safetensors").is_file() else None,
        "scenes": options.scenes,
        "seed": SEED,
        **report(samples, refusals, qwen.yes_no_calibration),
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(json.dumps({key: result[key] for key in ("auc", "unseen", "before", "after")}, indent=2))


if __name__ == "__main__":
    main()
