"""`Stream`: answers while a video runs, compared with those about single pictures; work in idle time."""

from __future__ import annotations

from unittest.mock import patch

import cv2
import numpy as np
import pytest

from arr_coc import ARRCOCQwen
from arr_coc.allocation.group import GroupOptions
from arr_coc.errors import OptionError
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.preprocess import Rgb
from arr_coc.video.stream import Stream
from tests.support.models import tiny_qwen

QUERY = "Say what happens."
SQUARE, CIRCLE = "a green square stays still.", "a red circle stays still"


@pytest.fixture(scope="module")
def model() -> ARRCOCQwen:
    return ARRCOCQwen(load_qwen(None, device="cpu"))


def picture(*, has_circle: bool, square_at: int = 400) -> Rgb:
    """Return 192 tiles: a green square, and a red circle at the top left if it is there."""
    image = np.full((384, 512, 3), (200, 200, 205), np.uint8)
    cv2.rectangle(image, (square_at - 32, 270), (square_at + 32, 334), (40, 170, 60), -1)
    if has_circle:
        cv2.circle(image, (120, 80), 36, (220, 40, 40), -1, cv2.LINE_AA)
    return image


def show(stream: Stream, images: list[Rgb], begin_s: float = 0.0) -> None:
    for number, image in enumerate(images):
        stream.update(image, begin_s + number / 4)


def read_all(stream: Stream) -> int:
    """Let the model read ahead to the end; return the number of calls."""
    calls = 1
    while stream.idle(0):
        stream.idle(20)
        calls += 1
        assert calls < 10_000
    return calls


@pytest.mark.parametrize("reads_ahead", [False, True])
def test_things_that_left_are_not_named_and_those_that_came_are(model: ARRCOCQwen, reads_ahead: bool) -> None:
    stream = model.stream(QUERY, budget=52)
    texts = []
    for second, has_circle in enumerate((False, True, True, False, False)):
        for part in range(4):
            show(stream, [picture(has_circle=has_circle)], second + part / 4)
            if reads_ahead:
                read_all(stream)
        texts.append(stream.answer().text)
    assert [CIRCLE in text for text in texts] == [False, True, True, False, False]
    assert texts[0] == texts[3] == texts[4] == SQUARE


def test_a_still_picture_is_read_whole_and_then_nothing(model: ARRCOCQwen) -> None:
    stream = model.stream(QUERY, budget=52)
    image = picture(has_circle=True)
    show(stream, [image])
    first = stream.answer()
    read_all(stream)
    show(stream, [image] * 4, 1)
    assert not stream.idle(0)
    assert stream.answer().tokens_used == 192 > first.tokens_used
    assert stream._session.last.work.appended_tokens == 0
    assert not stream.idle(0)


def test_an_answer_after_idle_time_reads_the_question_alone(model: ARRCOCQwen) -> None:
    stream = model.stream(QUERY, budget=52)
    show(stream, [picture(has_circle=False)])
    stream.answer()
    for second in (1, 2):  # the picture rests from the second on
        show(stream, [picture(has_circle=True)], second)
        read_all(stream)
    text = stream.answer().text
    assert CIRCLE in text
    assert stream._session.last.work.appended_tokens == 0


def test_a_question_in_the_middle_of_a_reading_finds_the_group_as_it_was(model: ARRCOCQwen) -> None:
    cold, warm = (model.stream(QUERY, budget=52) for _ in range(2))
    for stream in (cold, warm):
        show(stream, [picture(has_circle=False)])
        stream.answer()
        show(stream, [picture(has_circle=False)], 1)
    assert warm._begin_reading()
    for _ in range(3):
        assert warm._appending is not None
        warm._step(warm._appending)
    assert warm.answer().token_ids == cold.answer().token_ids


def test_another_question_leaves_the_standing_one(model: ARRCOCQwen) -> None:
    stream = model.stream(QUERY, budget=52)
    show(stream, [picture(has_circle=True)])
    before = stream.answer().text
    pieces: list[str] = []
    other = stream.ask("How many circles are there?", pieces.append)
    assert other.text == "".join(pieces) != before
    assert stream.query == QUERY
    assert stream.answer().text == before


def test_the_memory_has_limits(model: ARRCOCQwen) -> None:
    stream = model.stream(QUERY, budget=40, memory=GroupOptions(tokens=96))
    show(stream, [picture(has_circle=True)])
    stream.answer()
    read_all(stream)
    assert stream.answer().tokens_used <= 96


def test_a_cut_begins_anew(model: ARRCOCQwen) -> None:
    stream = model.stream(QUERY, budget=52)
    show(stream, [picture(has_circle=True)])
    stream.answer()
    read_all(stream)
    show(stream, [255 - cv2.flip(picture(has_circle=True), -1)] * 2, 1)
    stream.answer()
    last = stream._session.last
    assert last.work.appended_tokens == last.work.tokens_used <= 52


def test_the_form_of_an_answer_stands_once_in_the_prompt() -> None:
    stream = ARRCOCQwen(tiny_qwen()).stream(QUERY, schema=["open", "closed"], max_tokens=4)
    show(stream, [picture(has_circle=True)])
    slot = stream._session.slots[0]
    with patch.object(slot, "prepare", wraps=slot.prepare) as prepare:
        stream.answer()
    _, query, _, instruction, _ = prepare.call_args.args
    assert (query, instruction) == (QUERY, "Answer with one of: open, closed.")


def test_wrong_use_is_refused(model: ARRCOCQwen) -> None:
    with pytest.raises(OptionError, match="not empty"):
        model.stream(" ")
    stream = model.stream(QUERY)
    with pytest.raises(OptionError, match="give one to update"):
        stream.answer()
    assert not stream.idle(10)
    stream.close()
