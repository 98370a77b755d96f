"""A model that answers first, and another one where the first is unsure, for several thresholds.

    python -m evaluation.escalation [--count 60] [--rows FILE] [--out FILE]

Both models are asked each question about the same tokens, `BUDGET` of them, which the first one's allocator chooses.
The least probability of a token of the first answer, the end's included, is taken as a run takes it: in one more pass
over the answer. What a threshold gives is then read off the answers. `random`: right answers if as many were escalated
by chance, in the mean; `best`: if those and only those that the other model answers better. The threshold with the most
right answers, and among equal ones the fewest escalated, is chosen on the set `choose` and reported on `report`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from arr_coc.hub import bundled_model_path
from arr_coc.qwen.flops import Costs
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession, SlotQuestion
from arr_coc.types import TokenPacket
from evaluation.questions import EvalQuestion
from evaluation.report import bootstrap
from evaluation.scoring import score
from evaluation.strategies.arr_coc import allocator_for, check_allocated
from evaluation.strategies.base import Ask, Budget, stamps_of
from evaluation.suites import SetName, named_suite

RESULTS = Path(__file__).parent / "results" / "escalation.json"
STOCK = bundled_model_path().parent / "scenes-stock"
ORDERS = {"bundled, then stock": (None, str(STOCK)), "stock, then bundled": (str(STOCK), None)}
SUITES = ("still", "text", "camouflage")
BUDGET = "27%"
THRESHOLDS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.01)
"""The first answers everything at 0, and the other one at 1.01."""


def packets_of(qwen: QwenVL, question: EvalQuestion) -> list[TokenPacket]:
    """Return the tokens that a model's allocator chooses of a question's frames."""
    ask = Ask(question.frames, question.times_s, question.text, Budget.parse(BUDGET), "sparse")
    allocator = allocator_for(qwen, ask, ask.views(qwen))
    stamps = stamps_of(ask.times_s)
    packets = [allocator.allocate(frame, stamp) for frame, stamp in zip(ask.frames, stamps, strict=True)]
    check_allocated(allocator)
    return [packet for packet in packets if isinstance(packet, TokenPacket)]


def answer(qwen: QwenVL, packets: Sequence[TokenPacket], question: EvalQuestion) -> dict[str, Any]:
    """Return an answer's text, score and FLOPs, the least probability of a token, and the FLOPs of that."""
    session = AnswerSession(qwen, AnswerOptions(decoding=Decoding(64), feedback=False))
    text = "".join(session.answer(packets, question.text))
    work = session.last.work
    (scored,) = session.ask([SlotQuestion(0, packets, question.text, previous=text, same_above=0.0)])
    if scored.error is not None:
        raise scored.error
    assert scored.result is not None
    new_tokens = scored.result.work.prefilled_tokens  # of the prompt, which is in the cache but for its end
    cached_tokens = work.prefilled_tokens - new_tokens
    scoring_flops = Costs(qwen).prefill_after(cached_tokens, new_tokens + len(qwen.plain_token_ids(text)))
    row = {"text": text, "score": score(question, text), "flops": work.flops}
    return row | {"least": scored.same, "scoring_flops": scoring_flops}


def measure(order: str, of: SetName, count: int, file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the first questions of each suite; those that `file` has are not made again."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    rows = {(row["order"], row["set"], row["suite"], row["id"]): row for row in map(json.loads, lines)}
    models: list[QwenVL] = []
    with file.open("a", encoding="utf-8") as journal:
        for suite in SUITES:
            for number, pending in enumerate(named_suite(suite, count, of).questions()):
                key = (order, of, suite, number)
                if key not in rows:
                    models = models or [load_qwen(name, device="cpu") for name in ORDERS[order]]
                    question = pending.load()
                    packets = packets_of(models[0], question)
                    first, other = (answer(model, packets, question) for model in models)
                    rows[key] = {"order": order, "set": of, "suite": suite, "id": number, "first": first}
                    rows[key] |= {"group": f"{suite} {pending.group or number}", "other": other}
                    journal.write(json.dumps(rows[key]) + "\n")
                    journal.flush()
                yield rows[key]


def figures_at(threshold: float, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what a threshold gives: shares, right answers, and FLOPs by those of the first model alone."""
    first, other = (np.array([row[name]["score"] for row in rows]) for name in ("first", "other"))
    unsure = np.array([row["first"]["least"] < threshold for row in rows])
    alone = np.array([row["first"]["flops"] for row in rows], float)
    scoring = np.array([row["first"]["scoring_flops"] for row in rows], float)
    again = np.array([row["other"]["flops"] for row in rows], float)
    gain = np.where(unsure, other - first, 0.0)
    share = float(unsure.mean())
    spent = alone + (scoring if threshold else 0.0) + np.where(unsure, again, 0.0)
    by_gain = np.sort(other - first)[::-1][: int(unsure.sum())]
    mean = [float(gain.mean()), *bootstrap(gain.tolist(), [row["group"] for row in rows])]
    return {
        "escalated": round(share, 3),
        "right": round(float((first + gain).mean()), 4),
        "gain": [round(value, 4) for value in mean],
        "random": round(float(first.mean() + share * (other - first).mean()), 4),
        "best": round(float(first.mean() + by_gain[by_gain > 0].sum() / len(rows)), 4),
        "flops": round(float(spent.sum() / alone.sum()), 3),
    }


def auc(rows: Sequence[dict[str, Any]]) -> float:
    """Return how often a right first answer has a higher least probability than a wrong one; a tie counts half."""
    right, wrong = (
        np.array([row["first"]["least"] for row in rows if (row["first"]["score"] == 1) is value])
        for value in (True, False)
    )
    above = right[:, None] > wrong
    return round(float((above + 0.5 * (right[:, None] == wrong)).mean()), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="questions of each suite")
    parser.add_argument("--rows", type=Path, default=Path("escalation.rows.jsonl"), help="answers, kept and reused")
    parser.add_argument("--out", type=Path, default=RESULTS, help="path of the JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"suites": SUITES, "questions a suite": options.count, "budget": BUDGET}
    for order in ORDERS:
        sets = {of: list(measure(order, of, options.count, options.rows)) for of in get_args(SetName)}
        result[order] = {
            of: {"auc": auc(rows), "thresholds": {str(at): figures_at(at, rows) for at in THRESHOLDS}}
            for of, rows in sets.items()
        }
        tried = result[order]["choose"]["thresholds"]
        chosen = max(tried, key=lambda at: (tried[at]["right"], -tried[at]["escalated"]))
        result[order]["chosen"] = chosen
        print(f"{order}: {chosen}: {result[order]['report']['thresholds'][chosen]}")
    options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
