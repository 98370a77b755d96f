"""Live runs whose texture is on a device: pixels stay there on their way to the model, or the reason is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.answer.client import PIXELS_COPIED
from stream.config import AllocateConfig, AnswerConfig, CaptureConfig, Config, PipelineConfig
from stream.events import Answer, Event, FrameReady, Notice
from stream.runtime.frame_stages import run_in_threads
from tests.cuda_on_cpu.machine import CpuMachine
from tests.support.sections import sections
from tests.support.video import make_video, moving_square

MODEL = "tests.support.answer_models:DeviceAnswerModel"


def run(video: Path, *, single_process: bool, **values: str) -> list[Event]:
    config = Config(
        source=str(video),
        capture=CaptureConfig(realtime=True),
        allocate=AllocateConfig(budget=6),
        answer=AnswerConfig(every_s=0.3),
        **sections(**values),
        pipeline=PipelineConfig(single_process=single_process),
    )
    return list(run_in_threads(config, model_loader=MODEL).run())


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return make_video(tmp_path / "square.mp4", list(moving_square(12, 128, 96)), 10)


def answers(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Answer)]


def test_in_one_process_the_model_gets_tensors(cuda_on_cpu: CpuMachine, video: Path) -> None:
    events = run(video, single_process=True)
    assert answers(events)
    assert all(text.endswith(" there") for text in answers(events))
    frames = [event for event in events if isinstance(event, FrameReady)]
    assert {(frame.tokens, frame.jitter_share) for frame in frames} == {(6, None)}
    assert not [event for event in events if isinstance(event, Notice) and event.code == PIXELS_COPIED]


def test_a_model_without_a_device_gets_host_memory_and_it_is_reported_once(
    cuda_on_cpu: CpuMachine, video: Path
) -> None:
    """The driver of the tests is this process's own."""
    events = run(video, single_process=False)
    assert answers(events)
    assert all(text.endswith(" here") for text in answers(events))
    messages = [event.message for event in events if isinstance(event, Notice) and event.code == PIXELS_COPIED]
    assert len(messages) == 1
    assert "built without" in messages[0] or "finds no CUDA device" in messages[0]


def test_a_recording_holds_the_pixels(cuda_on_cpu: CpuMachine, video: Path, tmp_path: Path) -> None:
    events = run(video, single_process=True, record__folder=str(tmp_path / "recorded"))
    assert answers(events)
    assert all(text.endswith(" here") for text in answers(events))
