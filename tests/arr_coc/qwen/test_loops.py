"""Answers that repeat themselves: what is one, what is none, and what is left of it."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.answer_schema import AnswerSchema
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.batching.captured import Capture
from arr_coc.qwen.loops import COPIES_MIN, PERIOD_MAX, TOKENS_MIN, LoopDetector
from arr_coc.qwen.options import AnswerOptions, Decoding, Thinking
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession, SlotQuestion
from arr_coc.types import Question
from stream.answer.model import ClientQuestion, ask_alone
from stream.answer.qwen import QwenAnswerModel
from stream.answer.qwen_text import QwenTextModel
from tests.arr_coc.qwen.batching.test_captured import run_first
from tests.arr_coc.qwen.test_previous_answer import ended
from tests.arr_coc.qwen.test_session import QUERY, packet
from tests.arr_coc.qwen.test_thinking import notices_of_clients, thinking_qwen
from tests.support.models import tiny_qwen

ROOT = Path(__file__).resolve().parents[3]
TOKEN = re.compile(r"\d| ?[^\W\d]+| ?[^\w\s]+|\s+")
"""Tokens much like those of Qwen's tokenizer: words and runs of signs with the space before them, single digits."""


def end_of(ids: list[int], *, words: list[bool] | None = None) -> tuple[int, int] | None:
    """Number of tokens at which a loop is found, and of those that stay; None if there is none."""
    detector = LoopDetector()
    for token, is_word in zip(ids, words or itertools.repeat(True), strict=False):
        if detector.push(token, is_word=is_word):
            return detector.count, detector.held_from
    return None


def end_of_text(text: str) -> tuple[int, int] | None:
    known: dict[str, int] = {}
    tokens = TOKEN.findall(text)
    ids = [known.setdefault(token, len(known)) for token in tokens]
    return end_of(ids, words=[any(map(str.isalpha, token)) for token in tokens])


@pytest.mark.parametrize("period", [1, 2, 3, 5, 8, 11, 16, 31, 32])
@pytest.mark.parametrize("before", [0, 1, 40])
def test_a_loop_ends_at_its_second_repetition(period: int, before: int) -> None:
    beginning = list(range(1000, 1000 + before))
    part = list(range(period))
    at = before + max(TOKENS_MIN, COPIES_MIN * period)
    assert end_of(beginning + part * 200) == (at, before + 2 * period)
    assert end_of((beginning + part * 200)[: at - 1]) is None


def test_longer_parts_are_no_loops() -> None:
    assert end_of([*range(PERIOD_MAX + 1)] * 20) is None


@pytest.mark.parametrize(
    "text",
    [
        "2 2 2 2 2 2 2 2",
        "There are 2 2 2 2 of them, no no no no no, very very very very big.",
        "1000000000000000000000000000000",
        "a red car, a red car, a red car, a red car, a red car and a blue car",
        "\n".join(f"{number}. a red car" for number in range(1, 40)),
        "\n".join(f"- the {colour} car is parked" for colour in ("red", "blue", "green", "red", "grey", "red", "red")),
        "| left | right | up | down |\n| --- | --- | --- | --- |\n"
        + "\n".join(f"| {n} | {n} | {n} | {n} |" for n in range(9)),
        "\n".join(f"{a} x {b} = {a * b}" for a in range(1, 10) for b in range(1, 10)),
        ", ".join(str(number) for number in range(300)),
        "[" + ", ".join("0.25" for _ in range(20)) + "]",
        "0" * 127,
        "The man walks. The man walks. Then he runs. The man walks. The man walks.",
        "<box>(10,20),(30,40)</box><box>(11,20),(31,40)</box><box>(12,20),(32,40)</box><box>(13,20),(33,40)</box>",
    ],
)
def test_lists_tables_and_numbers_are_none(text: str) -> None:
    assert end_of_text(text) is None


def test_this_projects_documents_have_none() -> None:
    """Prose, tables, lists and code: a hundred thousand words and more."""
    words = 0
    folders = ("docs", "benchmarks", "training", "evaluation", "examples")
    for path in sorted([*ROOT.glob("*.md"), *(path for folder in folders for path in ROOT.glob(f"{folder}/**/*.md"))]):
        text = path.read_text()
        words += len(text.split())
        assert end_of_text(text) is None, path.name
    assert words > 50_000


@pytest.mark.parametrize(
    "text", ["the " * 40, "A man walks along the street. " * 8, "Yes. No. " * 20, "a red car, " * 9, "0" * 128]
)
def test_loops_of_text_are_found(text: str) -> None:
    assert end_of_text(text) is not None


def test_held_tokens_are_those_after_the_second_copy() -> None:
    detector = LoopDetector()
    held = []
    for token in [1, 2, 2, 2, 2, 3, 4, 3, 4, 3, 4, 5]:
        detector.push(token)
        held.append(detector.count - detector.held_from)
    assert held == [0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 2, 0]


def looping(qwen: QwenVL, script: list[int]) -> QwenVL:
    """Let a model say these tokens, then the last four again and again. A bias that follows the position says them."""
    vocabulary = qwen.model.lm_head.weight.shape[0]
    endless = [*script, *itertools.islice(itertools.cycle(script[-4:]), 400)]
    count = itertools.count()

    class Scripted(torch.nn.Module):
        weight = qwen.model.lm_head.weight

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            logits = torch.zeros(*rows.shape[:-1], vocabulary)
            logits[..., endless[next(count)]] = 9.0
            return logits

    qwen.model.lm_head = Scripted()
    return qwen


SCRIPT = [72, 73, 74, 75, 76, 77, 78, 79]


def answer(qwen: QwenVL, capture: Capture | None = None, **options: Any) -> AnswerSession:
    decoding = Decoding(64, **{"stop_loops": True, **options})
    session = AnswerSession(qwen, AnswerOptions(decoding=decoding, feedback=False), capture=capture)
    pieces = list(session.answer(packet(), QUERY))
    assert "".join(pieces) == session.last.text
    return session


def test_an_answer_ends_with_its_second_repetition() -> None:
    last = answer(looping(tiny_qwen(), SCRIPT)).last
    assert last.token_ids == (*SCRIPT, *SCRIPT[-4:])
    assert last.work.looped
    assert last.work.text_tokens == 12
    whole = answer(looping(tiny_qwen(), SCRIPT), stop_loops=False).last
    assert not whole.work.looped
    assert len(whole.token_ids) == 64
    assert whole.text.startswith(last.text)
    assert last.text == tiny_qwen().tokenizer.decode(last.token_ids)


@pytest.mark.parametrize("capture", [None, run_first])
def test_steps_that_ran_ahead_of_a_loop_are_dropped(capture: Capture | None) -> None:
    qwen = tiny_qwen()
    with torch.no_grad():
        qwen.model.lm_head.weight[:] = 0  # every token is as likely, so the first is taken
    vars(qwen)["eos_ids"] = frozenset()
    session = answer(qwen, capture)
    assert session.last.token_ids == (0, 0)
    assert session.last.work.looped
    assert session.open_answers == 0
    assert answer(qwen, capture, stop_loops=False).last.token_ids == (0,) * 64


def test_dropped_tokens_count_as_work() -> None:
    """36 tokens were decoded, of which 12 are left."""
    last = answer(looping(tiny_qwen(), SCRIPT)).last
    full = answer(looping(tiny_qwen(), SCRIPT), stop_loops=False, stop_strings=()).last
    assert last.operations.flops > answer_of(12).operations.flops
    assert last.operations.flops == answer_of(36).operations.flops < full.operations.flops


def answer_of(tokens: int) -> Any:
    session = AnswerSession(looping(tiny_qwen(), SCRIPT), AnswerOptions(decoding=Decoding(tokens), feedback=False))
    list(session.answer(packet(), QUERY))
    return session.last


def test_held_text_comes_once_the_answer_goes_on_or_ends() -> None:
    """Three and a half copies, and then another token, or the limit."""
    script = [72, 73, 74, 75] * 3 + [72, 73, 80, 81, 82, 83]
    for tokens in (13, 14, 16):
        decoding = [Decoding(tokens, stop_loops=on) for on in (True, False)]
        texts = []
        for one in decoding:
            session = AnswerSession(looping(tiny_qwen(), script), AnswerOptions(decoding=one, feedback=False))
            texts.append("".join(session.answer(packet(), QUERY)))
            assert session.last.token_ids == tuple(script[:tokens])
            assert not session.last.work.looped
        assert texts[0] == texts[1]


def test_a_stopped_answer_has_its_held_text() -> None:
    qwen = looping(tiny_qwen(), [72, 73, 74, 75])
    session = AnswerSession(qwen, AnswerOptions(decoding=Decoding(64, stop_loops=True), feedback=False))
    count = itertools.count(1)
    text = "".join(session.answer(packet(), QUERY, lambda: next(count) == 11))
    assert session.last.token_ids == (72, 73, 74, 75) * 2 + (72, 73, 74)
    assert text == session.last.text == qwen.tokenizer.decode(session.last.token_ids)


def test_a_stop_string_in_held_text_ends_the_answer() -> None:
    qwen = tiny_qwen()
    red = qwen.plain_token_ids("a red square")
    script = red * 3
    session = AnswerSession(
        looping(qwen, script), AnswerOptions(decoding=Decoding(64, stop_loops=True, stop_strings=("square",)))
    )
    text = "".join(session.answer(packet(), QUERY))
    assert text == "a red square"
    assert not session.last.work.looped


def test_an_answer_with_a_schema_is_never_cut_off() -> None:
    suns = {"type": "array", "items": {"enum": ["sun"]}, "minItems": 40, "maxItems": 40}
    schema = AnswerSchema.parse(json.dumps({"type": "object", "properties": {"a": suns}, "required": ["a"]}))
    options = AnswerOptions(decoding=Decoding(600, stop_loops=True))
    (formed,) = ended(AnswerSession(tiny_qwen(), options), SlotQuestion(0, packet(), QUERY, schema=schema))
    assert formed.result is not None
    assert formed.result.text == json.dumps({"a": ["sun"] * 40})


@pytest.mark.parametrize("thinking", ["hide", "show"])
def test_thoughts_that_repeat_themselves_end(thinking: Thinking) -> None:
    qwen = thinking_qwen()
    begin, _ = qwen.thought_ids or (0, 0)
    options = AnswerOptions(decoding=Decoding(64, stop_loops=True), thinking=thinking, feedback=False)
    session = AnswerSession(looping(qwen, [begin, *SCRIPT]), options)
    text = "".join(session.answer(packet(), QUERY))
    assert session.last.work.looped
    assert (text == "") == (thinking == "hide")
    assert session.last.thought_tokens == len(session.last.token_ids) == 13


def test_a_run_is_told_once_for_each_client() -> None:
    options = AnswerOptions(decoding=Decoding(64, stop_loops=True), feedback=False)
    model = QwenAnswerModel(AnswerSession(looping(tiny_qwen(), [72, 73, 74, 75]), options))
    line = (
        "an answer repeated itself, and was ended at its second repetition; set answer.repetition_penalty, such as "
        "1.05, or answer.stop_loops = false for all of it"
    )
    assert notices_of_clients(model) == [line, "", line]
    question = ClientQuestion(b"one", packet(), Question(QUERY))
    ask_alone(model, question)
    assert question.stats is not None
    assert question.stats.work.looped


def test_a_stream_says_so() -> None:
    stream = ARRCOCQwen(looping(tiny_qwen(), SCRIPT)).stream(QUERY, glance=False)
    stream.update(np.zeros((64, 64, 3), np.uint8), 0.0)
    answer = stream.answer()
    stream.close()
    assert answer.looped
    assert answer.token_ids == (*SCRIPT, *SCRIPT[-4:])


def test_a_text_of_a_recap_ends() -> None:
    text = QwenTextModel(ARRCOCQwen(looping(tiny_qwen(), SCRIPT))).complete("What was it?")
    assert text == tiny_qwen().tokenizer.decode([*SCRIPT, *SCRIPT[-4:]])


def test_signs_alone_are_a_table() -> None:
    """A line of a table's separators in an answer of the default length: 20 to 23 are signs."""
    last = answer(looping(tiny_qwen(), [20, 21, 22, 23])).last
    assert not last.work.looped
    assert len(last.token_ids) == 64


def test_the_library_says_so(caplog: pytest.LogCaptureFixture) -> None:
    picture = np.zeros((64, 64, 3), np.uint8)
    options: dict[str, Any] = {"glance": False, "max_tokens": 64}
    cut = ARRCOCQwen(looping(tiny_qwen(), SCRIPT)).generate(picture, QUERY, stop_loops=True, **options)
    assert cut.looped
    assert cut.token_ids == (*SCRIPT, *SCRIPT[-4:])
    assert [record.getMessage() for record in caplog.records if record.name == "arr_coc.model"] == [
        "an answer repeated itself and was ended; give repetition_penalty, such as 1.05"
    ]
    whole = ARRCOCQwen(looping(tiny_qwen(), SCRIPT)).generate(picture, QUERY, **options)
    assert not whole.looped
    assert len(whole.token_ids) == 64
