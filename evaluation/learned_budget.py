"""Budgets that a small head gives each question, beside a fixed budget of equal mean tokens.

    python -m evaluation.run --set choose --strategy arr-coc --budget 27%,10% --out /tmp/choose.json
    python -m evaluation.run --set report --strategy arr-coc --budget 27%,18%,10% --out /tmp/report.json
    python -m evaluation.learned_budget /tmp/choose.answers.jsonl /tmp/report.answers.jsonl [--out FILE]

A logistic regression predicts the gain of `MANY` tokens over `FEW` from what is known before anything is encoded: the
newest frame's relevance and the question's mean embedding. It is trained on the first answers, its L2 chosen there by
cross-validation over clips. On the second ones `MANY` goes to the largest predictions, as long as the tokens of the
fixed budget `FIXED` last, over all suites (`everywhere`) or in each suite. `random` is the mean over every choice of as
many tokens, `best` the choice by the gains themselves. Differences are paired by question, intervals are over clips.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.video.picture_allocator import PictureAllocator
from evaluation.report import bootstrap
from evaluation.strategies.base import stamps_of
from evaluation.suites import SetName, suite_samples
from training.clips.truth import Sample

RESULTS = Path(__file__).parent / "results" / "learned_budget.json"
FEW, FIXED, MANY = "10%", "18%", "27%"
HEADS = {"both": slice(None), "relevance": slice(0, 4), "question": slice(4, None)}
STRENGTHS, FOLDS = 10.0 ** np.arange(6), 5

Numbers: TypeAlias = npt.NDArray[np.float64]


def head_inputs(qwen: QwenVL, sample: Sample) -> list[float]:
    """Return entropy, largest tenth, largest and count of the newest frame's relevance, and the mean embedding."""
    allocator = PictureAllocator(qwen, sample.question)
    for frame, stamp in zip(sample.clip.frames, stamps_of(sample.clip.times_s), strict=True):
        allocator.allocate(frame, stamp)
    relevance = np.sort(allocator.relevance.ravel().astype(np.float64))[::-1]
    shares = relevance / max(relevance.sum(), 1e-12)
    entropy, size = -float((shares * np.log(np.maximum(shares, 1e-12))).sum()), float(np.log(len(shares)))
    top = float(shares[: max(1, round(0.1 * len(shares)))].sum())
    return [entropy / size, top, float(relevance[0]), size, *qwen.embed_query(sample.question).tokens.mean(0).tolist()]


class Answers(NamedTuple):
    """Questions answered at several budgets: `scores` and `tokens` float64 [N] by budget, `inputs` float64 [N, D]."""

    scores: dict[str, Numbers]
    tokens: dict[str, Numbers]
    inputs: Numbers
    gains: Numbers
    suites: npt.NDArray[np.str_]
    clips: list[str]


def read(journal: Path, of: SetName, budgets: Sequence[str], qwen: QwenVL) -> Answers:
    """Read the questions that have all budgets, and compute the head's inputs."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in map(json.loads, journal.read_text("utf-8").splitlines()):
        found.setdefault(row["suite"], {}).setdefault(int(row["id"]), {})[row["budget"]] = row
    cells, inputs = [], []
    for suite, rows in found.items():
        for number, sample in enumerate(suite_samples(suite, 1 + max(rows), of)):
            if set(budgets) <= set(rows.get(number, ())):
                cells.append(rows[number])
                inputs.append(head_inputs(qwen, sample))
    scores = {name: np.array([float(cell[name]["score"]) for cell in cells]) for name in budgets}
    tokens = {name: np.array([float(cell[name]["tokens"]) for cell in cells]) for name in budgets}
    clips = [f"{cell[FEW]['suite']} {cell[FEW]['group'] or cell[FEW]['id']}" for cell in cells]
    suites = np.array([clip.split()[0] for clip in clips])
    return Answers(scores, tokens, np.array(inputs), scores[MANY] - scores[FEW], suites, clips)


def fit(inputs: Numbers, targets: Numbers, strength: float) -> Numbers:
    """Return weights float64 [D] of a logistic regression by Newton's method, with L2 but on the first, a constant."""
    weights = np.zeros(inputs.shape[1])
    penalty = np.diag(np.where(np.arange(len(weights)) > 0, strength, 0.0))
    for _ in range(10):
        chance = 0.5 * (1 + np.tanh(inputs @ weights / 2))
        slope = inputs.T @ (chance - targets) + penalty @ weights
        weights -= np.linalg.solve((inputs.T * (chance * (1 - chance))) @ inputs + penalty, slope)
    return weights


def predict(chosen: Answers, reported: Answers, columns: slice) -> tuple[Numbers, float]:
    """Return predictions for the reported questions, in the order of their expected gain, and the chosen L2."""
    mean, spread = chosen.inputs.mean(axis=0), chosen.inputs.std(axis=0) + 1e-9
    inputs, others = (
        np.insert(((part.inputs - mean) / spread)[:, columns], 0, 1.0, axis=1) for part in (chosen, reported)
    )
    targets = (1 + chosen.gains) / 2  # a logit in the order of the mean gain, in which losses count
    _, clips = np.unique(chosen.clips, return_inverse=True)
    folds = np.random.default_rng(0).permutation(clips.max() + 1)[clips] % FOLDS

    def loss(strength: float) -> float:
        odds = np.zeros(len(targets))
        for held in (folds == fold for fold in range(FOLDS)):
            odds[held] = inputs[held] @ fit(inputs[~held], targets[~held], strength)
        return float((np.logaddexp(0, odds) - targets * odds).sum())

    strength = min(STRENGTHS, key=loss)
    return others @ fit(inputs, targets, strength), strength


def compare(reported: Answers, predicted: Numbers, where: npt.NDArray[np.str_]) -> dict[str, Any]:
    """Spend the tokens of the fixed budget anew among the questions of each name in `where`."""
    base, extra = reported.tokens[FEW], reported.tokens[MANY] - reported.tokens[FEW]
    shares = {way: np.zeros(len(extra)) for way in ("head", "random", "best")}
    for at in (np.flatnonzero(where == name) for name in np.unique(where)):
        spare = float((reported.tokens[FIXED] - base)[at].sum())
        for way, worth in (("head", predicted), ("best", reported.gains)):
            order = at[np.argsort(-worth[at], kind="stable")]
            shares[way][order[np.cumsum(extra[order]) <= spare]] = 1
        shares["random"][at] = spare / extra[at].sum()
    right = {way: reported.scores[FEW] + share * reported.gains for way, share in shares.items()}
    right["fixed"] = reported.scores[FIXED]
    figures: dict[str, Any] = {way: round(float(score.mean()), 4) for way, score in right.items()}
    spent = {"fixed": reported.tokens[FIXED]} | {way: base + share * extra for way, share in shares.items()}
    figures["tokens"] = {way: round(float(tokens.mean()), 2) for way, tokens in spent.items()}
    for one, other in (("head", "fixed"), ("head", "random"), ("random", "fixed"), ("best", "fixed")):
        pairs = (right[one] - right[other]).tolist()
        interval = (float(np.mean(pairs)), *bootstrap(pairs, reported.clips))
        figures[f"{one} - {other}"] = [round(value, 4) for value in interval]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path, nargs=2, help="answers of the set choose, and of report")
    parser.add_argument("--out", type=Path, default=RESULTS, help="path of the JSON")
    options = parser.parse_args()
    qwen = load_qwen(None, device="cpu")
    chosen = read(options.answers[0], "choose", (FEW, MANY), qwen)
    reported = read(options.answers[1], "report", (FEW, FIXED, MANY), qwen)
    result: dict[str, Any] = {"budgets": [FEW, FIXED, MANY]}
    for name, answers in (("choose", chosen), ("report", reported)):
        result[name] = {"suites": Counter(answers.suites.tolist()), "gains": Counter(np.sign(answers.gains).tolist())}
    for head, columns in HEADS.items():
        predicted, strength = predict(chosen, reported, columns)
        above = predicted[reported.gains > 0][:, None] > predicted[reported.gains <= 0]
        result[head] = {"l2": round(float(strength), 3), "auc": round(float(above.mean()), 3)}
        result[head]["everywhere"] = compare(reported, predicted, np.full(len(predicted), "all"))
        result[head]["in each suite"] = compare(reported, predicted, reported.suites)
    options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
