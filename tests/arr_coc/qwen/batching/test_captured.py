"""The captured step of a batch, repeated by a plain call in place of a CUDA graph, against the plain step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from arr_coc.qwen.batching.captured import CapturedRows
from arr_coc.qwen.batching.session import BatchSession, SlotQuestion
from arr_coc.qwen.cuda_graph import Capture
from arr_coc.qwen.qwenvl import QwenVL
from tests.arr_coc.qwen.batching.test_session import alone, asked, check_equal, options, spoken
from tests.arr_coc.qwen.test_cuda_graph import CAPTURES, WatchedCaptures, model, run_first
from tests.arr_coc.qwen.test_session import QUERY, packet
from tests.support.models import FAMILIES, tiny_qwen


class CountedCapture:
    """Counts captures, by the number of rows in the graph."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.rows: list[int] = []

    def __call__(self, step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        owner = step.__self__  # type: ignore[attr-defined]
        self.rows.append(owner.inputs.shape[1])
        return self._capture(step, device)


def ask(batch: BatchSession, *slots: int) -> None:
    """Answers in these slots are those of lone sessions."""
    given = [(slot, *asked(len(slots))[number]) for number, slot in enumerate(slots)]
    found = spoken(batch, batch.ask([SlotQuestion(*one) for one in given]))
    for (_, shown, query), one in zip(given, found, strict=True):
        check_equal(one, alone(batch.qwen, batch.options, shown, query))


@pytest.mark.parametrize(("capture", "device"), CAPTURES)
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_by_graphs_are_those_alone(family: str, capture: Capture, device: str) -> None:
    counted = CountedCapture(capture)
    batch = BatchSession(model(device, family), options(), slots=6, capture=counted)
    for slots in ((0,), (1, 0), (3, 1, 2), (5, 0), (2,)):
        ask(batch, *slots)
    assert counted.rows == [1, 2, 4, 6]


def test_graphs_are_captured_again_where_the_room_has_grown() -> None:
    counted = CountedCapture(run_first)
    qwen = tiny_qwen()
    vars(qwen)["eos_ids"] = frozenset()
    batch = BatchSession(qwen, options(), slots=2, capture=counted)
    ask(batch, 0, 1)
    ask(batch, 0, 1)
    assert (counted.rows, batch.block.room) == ([2], 256)
    long = "a" * 300
    found = spoken(batch, batch.ask([SlotQuestion(slot, packet(slot), long) for slot in range(2)]))
    assert (counted.rows, batch.block.room) == ([2, 2], 512)
    for slot, one in enumerate(found):
        check_equal(one, alone(qwen, options(), packet(slot), long))


def test_a_slot_in_between_keeps_its_prompt_while_others_speak() -> None:
    """It computes along, and writes where nothing is read."""
    qwen = tiny_qwen()
    batch = BatchSession(qwen, options(), slots=3, capture=run_first)
    ask(batch, 0, 1, 2)
    ask(batch, 0, 2)
    again = spoken(batch, batch.ask([SlotQuestion(1, *asked(3)[1])]))
    assert again[0].prefilled_tokens < len(batch.session(1).prompts.question(asked(3)[1][1])) + 3
    check_equal(again[0], alone(qwen, options(), *asked(3)[1]))


def test_decoding_goes_on_without_graphs_where_they_cannot_be_captured(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    with caplog.at_level(logging.WARNING):
        batch = BatchSession(tiny_qwen(), options(), slots=2, capture=refuse)
        ask(batch, 0, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "decoding continues without captured graphs: operation not permitted when stream is capturing"
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_several_rows_can_be_captured(family: str) -> None:
    """Nothing of it waits for the device or comes from the host; tensors without values tell by refusing both."""
    pytest.importorskip("transformers", "5.0", "before, rotations asked for an autocast that such tensors do not have")
    qwen: QwenVL = tiny_qwen(family)
    if family == "qwen3_vl_moe":
        qwen.model.to(torch.bfloat16)  # without values, grouped products know no other
    batch = BatchSession(qwen, options(1), slots=4)
    batch.ask([SlotQuestion(0, packet(), QUERY)])
    qwen.model.to("meta")
    for layer in batch.block.layers:
        layer.keys, layer.values = layer.keys.to("meta"), layer.values.to("meta")
    watched = WatchedCaptures()
    vars(qwen)["device"] = torch.device("meta")
    for rows in (1, 2, 4):
        made: Any = CapturedRows(qwen, batch.block, rows, watched)
        assert made.logits.shape == (rows, qwen.model.lm_head.weight.shape[0])
    assert watched.steps == 3
