"""Scores by which an answer counts as nothing new, against whether the right answer changed: the suite `stream`.

    python -m evaluation.news [--answers 1050] [--budget 0.1] [--out FILE]

Every answer after the first to the same question is one case: is the previous answer still right of this frame? With a
visual memory, as in a run with `answer.when = "news"`. `auc`: how often a case whose right answer is the same scores
higher than one whose right answer is another; a tie counts half. Scores:

- `least`, `mean`, `product`: of the probabilities of the previous answer's tokens after the question, in one pass;
- `equal`: whether the model gives that text again;
- the others: the log-odds of yes to a question about the previous answer.

`silent`: share of the cases that are not answered at a threshold of `least`, or because the text is equal; `stale` of
those whose right answer changed. `history`: share of right answers by the number of answers before the question.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.group import GroupOptions
from arr_coc.qwen.decode import PromptPart, prefill
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession, SlotQuestion
from arr_coc.types import PastAnswer, TokenPacket
from arr_coc.video.picture_allocator import PictureAllocator
from evaluation.questions import EvalQuestion
from evaluation.scoring import score
from evaluation.strategies.base import stamps_of
from evaluation.strategies.memory import LONGEST_S
from evaluation.suites import SUITES, named_suite
from stream.answer.model import history_text
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results" / "news.json"

WORDINGS = {
    "still right?": 'Is this still right: "{answer}"?',
    "is it …?": "{question} Is it {answer}?",
    "still true?": '{question} "{answer}" Is that still true?',
}
SCORES = ("least", "mean", "product", "equal", *WORDINGS)
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
PARTS = ("moving", "sign", "still", "event")
HISTORIES = (1, 3)


class Camera:
    """Answers about one clip after another, with a visual memory; `texts` and `truths` are those of earlier answers."""

    def __init__(self, qwen: QwenVL, share: float) -> None:
        self._qwen = qwen
        self._share = share
        self._session = AnswerSession(qwen, AnswerOptions(decoding=Decoding(64), feedback=False))
        self._group = ""

    def take(self, question: EvalQuestion) -> dict[str, Any]:
        """Answer a question; return its case, without scores if it was not asked before."""
        packets = self._group_packets(question)
        case: dict[str, Any] = {"part": question.kind}
        if question.text in self._last:
            case |= self._scores(packets, question, *self._last[question.text])
        for length in HISTORIES:
            text = history_text(tuple(self._history[-length:]))
            case[f"history {length}"] = score(question, self._answer(packets, question.text, text))
        text = self._answer(packets, question.text)
        case |= {"right": score(question, text), "history 0": score(question, text)}
        if question.text in self._last:
            case["equal"] = text == self._last[question.text][0]
        self._history.append(PastAnswer(round(question.times_s[-1] * 1e9), text))
        self._last[question.text] = text, question.answers
        return case

    def _group_packets(self, question: EvalQuestion) -> Sequence[TokenPacket]:
        """The group of pictures with the question's frame."""
        frame, qwen = question.frames[-1], self._qwen
        if question.group != self._group:
            self._group = question.group
            self._last: dict[str, tuple[str, Sequence[str]]] = {}
            self._history: list[PastAnswer] = []
            budget = max(1, round(self._share * qwen.preprocessing.fit(frame)[1].tiles))
            options = AllocatorOptions(budget=budget, explore=0.0, memory=GroupOptions(seconds=LONGEST_S))
            self._allocator = PictureAllocator(qwen, question.text, options, "sparse")
            self._frames = 0
            self._session.forget()
        else:
            self._allocator.set_query(qwen.embed_query(question.text))
            self._allocator.on_answer(None)
        (stamp,) = stamps_of(question.times_s[-1:])
        self._allocator.allocate(frame, replace(stamp, frame_index=self._frames))
        self._frames += 1
        return self._allocator.group

    def _answer(self, packets: Sequence[TokenPacket], query: str, history: str = "") -> str:
        (answer,) = self._session.ask([SlotQuestion(0, packets, query, history=history)])
        while not answer.has_ended:
            self._session.step()
        if answer.error is not None:
            raise answer.error
        return self._session.last.text

    def _scores(
        self, packets: Sequence[TokenPacket], question: EvalQuestion, previous: str, truths: Sequence[str]
    ) -> dict[str, Any]:
        case: dict[str, Any] = {"changed": truths != question.answers, "was_right": score(question, previous) > 0}
        for name, wording in WORDINGS.items():
            query = wording.format(question=question.text, answer=previous.rstrip("."))
            case[name] = self._session.score_yes_no(packets, query).raw_log_odds
        logs = answer_logs(self._qwen, self._session, packets, question.text, previous)
        return case | {"least": float(logs.min()), "mean": float(logs.mean()), "product": float(logs.sum())}


@torch.inference_mode()
def answer_logs(
    qwen: QwenVL, session: AnswerSession, packets: Sequence[TokenPacket], query: str, text: str
) -> torch.Tensor:
    """Log-probabilities of a text as the answer to a question, in one pass.

    Args:
        qwen: The model.
        session: A session of that model; its first slot is used.
        packets: The frames that the prompt shows, oldest first.
        query: The question.
        text: The answer.

    Returns:
        float64 [tokens of the text + 1]: one for each token, and one for the end.
    """
    slot, ids = session.slots[0], qwen.plain_token_ids(text)
    prompt, cache = slot.prepare(packets, query).prompt.part, slot.prompts.cache
    first, answer = prefill(qwen, prompt, cache), PromptPart(qwen, prompt.tokens, prompt.position)
    answer.text(ids)
    hidden = qwen.language_model(**answer.inputs(), past_key_values=cache.kv, use_cache=True).last_hidden_state
    logs = torch.log_softmax(torch.cat([first[None], qwen.model.lm_head(hidden[0])]).double(), dim=-1)
    return torch.cat([logs[range(len(ids)), ids], logs[-1, list(qwen.eos_ids)].logsumexp(0)[None]])


def auc(cases: Sequence[dict[str, Any]], name: str) -> float | None:
    """Share of pairs in which a case with the same right answer scores higher than one whose right answer changed."""
    same, changed = (
        np.array([float(case[name]) for case in cases if case["changed"] is value]) for value in (False, True)
    )
    if not len(same) or not len(changed):
        return None
    return round(float((same[:, None] > changed).mean() + 0.5 * (same[:, None] == changed).mean()), 3)


def _silence(cases: Sequence[dict[str, Any]], threshold: float) -> dict[str, float]:
    """Shares not answered at a threshold, of cases whose right answer is the same and of the others."""
    silent = np.array([case["equal"] or np.exp(case["least"]) >= threshold for case in cases])
    checked = np.array([np.exp(case["least"]) >= threshold for case in cases])
    changed = np.array([case["changed"] for case in cases])
    shares = silent[~changed].mean(), checked[~changed].mean(), silent[changed].mean()
    return dict(
        zip(("silent", "of these by the check", "stale"), (round(float(share), 3) for share in shares), strict=True)
    )


def report(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All figures."""
    repeats = [case for case in cases if "changed" in case]
    parts = {"all": repeats, **{part: [case for case in repeats if case["part"] == part] for part in PARTS}}
    lengths = (0, *HISTORIES)
    return {
        "cases": {name: [len(of), sum(case["changed"] for case in of)] for name, of in parts.items()},
        "auc": {score: {name: auc(of, score) for name, of in parts.items()} for score in SCORES},
        "thresholds": {str(threshold): _silence(repeats, threshold) for threshold in THRESHOLDS},
        "history": {
            str(length): round(float(np.mean([case[f"history {length}"] for case in cases])), 3) for length in lengths
        },
    }


def measure_cases(qwen: QwenVL, answers: int, share: float) -> Iterator[dict[str, Any]]:
    """The cases of the suite's first answers."""
    camera = Camera(qwen, share)
    for question in (pending.load() for pending in named_suite("stream", answers, "choose").questions()):
        yield camera.take(question)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=SUITES["stream"].count)
    parser.add_argument("--budget", type=float, default=0.1, help="share of a frame's tokens that an answer appends")
    parser.add_argument("--out", type=Path, default=RESULTS, help="path of the JSON")
    options = parser.parse_args()
    logging.getLogger("arr_coc").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    figures = report(list(measure_cases(load_qwen(), options.answers, options.budget)))
    result = {"machine": machine(), "answers": options.answers, "budget": options.budget, **figures}
    options.out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
