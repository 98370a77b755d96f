"""Streams to learn from: an allocator sees them as in a run, and learns from what it saw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from arr_coc.adaptation.cases import Batches, Embedder
from arr_coc.adaptation.trainer import new_layer
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.history import ECCENTRICITY, HISTORY, MOTION, PREVIOUS
from tests.support.models import tiny_folder, tiny_qwen
from tests.support.video import scenery
from training.allocator import Recipe, train
from training.streams import Stream, StreamCases, random_streams

BOX = ((0.0, 0.0, 40.0, 40.0),)
UNCHANGED = 36


@pytest.fixture(scope="module")
def qwen() -> QwenVL:
    return tiny_qwen()


def stream(shifts_px: tuple[int, ...], *, answered: bool = False) -> Stream:
    """A picture that moves to the left by so many pixels, a second from frame to frame."""
    wide = scenery(6, 12, seed=3)
    frames = tuple(np.ascontiguousarray(wide[:, shift : shift + 256]) for shift in shifts_px)
    times_s = tuple(float(index) for index in range(len(frames)))
    return Stream(frames, times_s, "where is the star?", "where", (BOX,) * len(frames), answered, "27%", 0)


def test_streams_are_the_same_on_every_call_and_others_in_each_split() -> None:
    first, repeat, other = (
        [(found.question, found.boxes, found.times_s) for found in random_streams(split, 0, 3)]
        for split in ("train", "train", "test")
    )
    assert first == repeat
    assert first != other


def test_a_held_picture_has_earlier_relevance_and_ages(qwen: QwenVL) -> None:
    cases = StreamCases(qwen, new_layer(qwen, channels="full40"))
    seen = [(case.texture.channels, relevance) for case, relevance in cases.of(stream((0, 0, 0)))]
    assert not seen[0][0][list(HISTORY)].any(), "nothing is known of the first frame"
    assert torch.equal(seen[1][0][PREVIOUS][0], seen[0][1]), "the relevance by which the frame before was shown"
    assert seen[1][0][ECCENTRICITY].any()
    assert [float(channels[UNCHANGED].max()) for channels, _ in seen] == pytest.approx([0, 1 / 5, 2 / 5])
    assert not seen[2][0][MOTION].any()


def test_a_pan_has_motion(qwen: QwenVL) -> None:
    cases = StreamCases(qwen, new_layer(qwen, channels="full40"))
    first, *moved = [case.texture.channels[MOTION] for case, _ in cases.of(stream((0, 16, 32)))]
    assert not first.any()
    assert all(float(motion.median()) > 0.1 for motion in moved)


def test_answers_are_fed_back_to_either_profile(qwen: QwenVL) -> None:
    for profile in ("core13", "full40"):
        cases = StreamCases(qwen, new_layer(qwen, channels=profile))
        assert all(case.prior is None for case, _ in cases.of(stream((0, 0))))
        first, second = (case for case, _ in cases.of(stream((0, 0), answered=True)))
        assert first.prior is None
        assert second.prior is not None
        assert second.prior[2].any()
        batch = Batches([second], Embedder(qwen), np.random.default_rng(0)).next().to(torch.device("cpu"))
        assert batch.prior is not None
        assert torch.equal(batch.prior[0], second.prior)


def test_what_is_nearly_everywhere_or_nowhere_is_no_case(qwen: QwenVL) -> None:
    everywhere = ((0.0, 0.0, 256.0, 192.0),)
    boxes = (BOX, (), everywhere)
    cases = StreamCases(qwen, new_layer(qwen))
    assert len(list(cases.of(replace(stream((0, 0, 0)), boxes=boxes)))) == 1


def test_time_and_earlier_relevance_are_learned_from(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", tie_word_embeddings=True)
    layer = train(folder, Recipe("streams", steps=6, clips=6, channels="full40"), tmp_path / "run")
    assert layer.realiser.participation.asked is not None
    weights = layer.realiser.participation.asked.near.weight
    for channel in (ECCENTRICITY, PREVIOUS.start, UNCHANGED):
        assert weights[:, channel].any(), channel
