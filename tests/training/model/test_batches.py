"""Batches: equal numbers of tokens, questions with only their answers to learn, the same from the same seed."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from tests.support.network import until
from training.clips.scenes import random_clip
from training.model.batches import (
    IGNORED,
    TOKENS_ASKED,
    BackgroundBatches,
    Prompter,
    _dropped,
    asked_places,
    random_batches,
)
from training.model.lessons import FEW_QUESTIONS, QUESTIONS, Lesson
from training.model.tokenizer import scenes_tokenizer
from training.model.views import UNKNOWN, Showing, Viewer


def test_a_batch_fits_together_and_only_answers_are_learned() -> None:
    tokenizer = scenes_tokenizer()
    answers = 0
    for batch in islice(random_batches(1, SimpleNamespace(value=1.0)), 6):
        clips, frames, tokens = batch.regions.shape[:3]
        assert clips * frames * tokens <= TOKENS_ASKED * 1.3
        assert batch.pixels.shape == (clips, frames, tokens, 3, 32, 32)
        assert batch.times.shape[:2] == (clips, frames)
        assert (batch.times.shape[2] > 0) == (frames > 1)
        if not batch.ids.numel():
            continue
        assert batch.ids.shape == batch.labels.shape
        assert batch.question_numbers.shape == batch.ids.shape
        questions = batch.places.shape[1]
        assert questions in (QUESTIONS, FEW_QUESTIONS, 1)
        has_label = batch.labels != IGNORED
        assert torch.equal(batch.ids[has_label], batch.labels[has_label])
        assert not has_label[batch.question_numbers == questions].any(), "padding"
        for clip, question in np.ndindex(clips, questions):
            in_question = batch.question_numbers[clip] == question
            answer = tokenizer.decode(batch.ids[clip, in_question & has_label[clip]])
            assert answer.endswith(".<|im_end|>")
            assert "?" not in answer
            answers += 1
    assert answers


def test_places_are_reported_of_one_or_two_things_in_the_first_frame_and_in_the_last() -> None:
    clip = random_clip(np.random.default_rng(1), (240, 120), 3)
    left, right, low = (0.0, 0.0, 24.0, 24.0), (200.0, 0.0, 240.0, 20.0), (100.0, 100.0, 120.0, 120.0)
    appears = ((), (left,), (left,))
    moves = ((left,), (), (right,))
    two = ((left, right),) * 3
    many = ((left, right, low),) * 3
    questions = (("?", "."),) * 6
    rows = asked_places(Lesson(clip, questions, (appears, moves, two, many, (), ((), (), ()))))
    unknown = [UNKNOWN] * 2
    assert rows == [
        [*unknown, *unknown, 1, 2, *unknown],
        [1, 2, *unknown, 22, 2, *unknown],
        [1, 2, 22, 2] * 2,
        [IGNORED] * 8,
        [IGNORED] * 8,
        unknown * 4,
    ]
    assert asked_places(Lesson(clip, questions[:2])) == [[IGNORED] * 8] * 2


def test_the_same_seed_gives_the_same_batches() -> None:
    first, second = (next(random_batches(9, SimpleNamespace(value=0.0))) for _ in range(2))
    assert torch.equal(first.pixels, second.pixels)
    assert torch.equal(first.ids, second.ids)


def test_dropping_tokens_takes_background_first() -> None:
    rng = np.random.default_rng(2)
    clip = random_clip(rng, (256, 192))
    view = Viewer(rng).look(clip.frames[0], clip.things[0], Showing(40, "foveated"))
    things = int((view.targets[:, 0] >= 0).sum())
    rest = _dropped(rng, view, things)
    assert len(rest.regions) == things
    assert (rest.targets[:, 0] >= 0).all()


def test_dropping_tokens_leaves_the_overview() -> None:
    rng = np.random.default_rng(2)
    clip = random_clip(rng, (256, 192))
    view = Viewer(rng).look(clip.frames[0], clip.things[0], Showing(40, "topk", overview=12))
    rest = _dropped(rng, view, 20)
    assert (rest.overview, len(rest.regions)) == (12, 20)
    assert np.array_equal(rest.regions[:12], view.regions[:12])


def test_the_template_is_that_of_answering() -> None:
    prompter, tokenizer = Prompter(), scenes_tokenizer()
    prompt, labels = prompter.dialogue("Say what happens.", "nothing is there.")
    content = [{"type": "image"}, {"type": "text", "text": "Say what happens."}]
    messages = [{"role": "user", "content": content}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    reply = [token for token in labels if token != IGNORED]
    before = tokenizer(text.replace("<|image_pad|>", ""), add_special_tokens=False)["input_ids"]
    assert prompter.head + prompter.open + prompter.close + prompt == before + reply


def test_a_background_process_that_stops_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.model.batches._WAIT_S", 0.01)
    batches = BackgroundBatches(1)
    batches._processes[0].kill()
    try:
        with pytest.raises(RuntimeError, match="the processes that draw pictures have stopped"):
            batches.next()
    finally:
        batches.close()


def test_processes_that_draw_end_with_their_trainer() -> None:
    code = """
import os, signal, sys
from training.model.batches import BackgroundBatches
if __name__ == "__main__":
    batches = BackgroundBatches(1)
    batches.next()
    print(batches._processes[0].pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    trainer = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    drawing = psutil.Process(int(trainer.stdout))
    until(lambda: not drawing.is_running() or drawing.status() == psutil.STATUS_ZOMBIE)
