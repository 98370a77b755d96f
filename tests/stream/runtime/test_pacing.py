"""Short pauses of a process whose frames are live."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from stream.config import AnswerConfig, CaptureConfig, Config, PipelineConfig
from stream.events import FrameReady
from stream.runtime import frame_stages
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.pacing import SWITCH_S, short_pauses


def test_pauses_are_short_inside_and_as_before_after() -> None:
    before_s = sys.getswitchinterval()
    assert before_s > SWITCH_S
    with suppress(KeyError), short_pauses():
        assert sys.getswitchinterval() == SWITCH_S
        assert gc.get_freeze_count() > 10_000, "what was imported is looked through"
        raise KeyError
    assert sys.getswitchinterval() == before_s
    assert gc.get_freeze_count() == 0


def test_the_first_of_two_runs_that_ends_leaves_the_other_its_short_pauses() -> None:
    before_s = sys.getswitchinterval()
    first, second = short_pauses(), short_pauses()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == SWITCH_S
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == before_s
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(("realtime", "steady", "entered"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_pauses_are_short_if_frames_are_live(
    monkeypatch: pytest.MonkeyPatch, realtime: bool, steady: bool, entered: int
) -> None:
    count = 0

    @contextmanager
    def counted() -> Iterator[None]:
        nonlocal count
        count += 1
        yield

    monkeypatch.setattr(frame_stages, "short_pauses", counted)
    config = Config(
        source="scene:demo",
        capture=CaptureConfig(max_frames=3, realtime=realtime),
        answer=AnswerConfig(),
        pipeline=PipelineConfig(single_process=True, steady=steady),
    )
    run = run_in_threads(config, model_loader="tests.support.answer_models:FakeAnswerModel")
    assert any(isinstance(event, FrameReady) for event in run.run())
    assert count == entered
