"""`answer.on_cut`: an answer that a cut made stale is finished or cancelled, counted, reported, and no caption."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.types import FrameStamp, TileGrid
from arr_coc.video.texture_updater import TextureUpdater
from stream.answer.admission import ServerOptions
from stream.answer.model import Packet
from stream.answer.server import AnswerServer
from stream.clock import DisplayClock
from stream.config import AnswerConfig, Config, PipelineConfig
from stream.config_loading import build_config, layer_from_assignment
from stream.control import CancelledError, RunControl
from stream.display.state import Transcript
from stream.display.text import EventText
from stream.errors import ConfigError
from stream.events import Answer, AnswerCancelled, AnswerDeltaEvent, Notice, encode_event
from stream.protocol.codec import token_message
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    Connect,
    Message,
    TurnExpired,
    TurnGrant,
    TurnRequest,
)
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.plan import RunPlan
from stream.sources import SourceInfo
from stream.transport.links import Envelope
from tests.support.answer_models import FakeAnswerModel
from tests.support.events import QUESTION, make_token_packet
from tests.support.network import LIMIT_S
from tests.support.video import make_video, moving_square

CUT_FRAME, FRAMES, FPS = 7, 20, 10
WAIT_S = 0.005
STALE = AnswerCancelled(
    answer=4, frame_index=2, pts_s=0.2, trigger="every", text="a red", by="cut", by_frame_index=7, by_pts_s=0.7
)


class StaleAnswerModel(FakeAnswerModel):
    """Generates pieces about a frame before the cut until it is stopped; answers at once about a later one."""

    start = threading.Event()

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        if packet.stamp.frame_index >= CUT_FRAME:
            yield from super().answer(packet, query)
            return
        yield "stale"
        self.start.set()
        for _ in range(round(LIMIT_S / WAIT_S)):
            threading.Event().wait(WAIT_S)
            yield ""


@pytest.fixture
def cut_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Clip whose cut is read only after the answer about an earlier frame has begun."""
    StaleAnswerModel.start = threading.Event()
    commit = TextureUpdater.commit

    def waits(self: TextureUpdater, prepared: Any, stamp: FrameStamp) -> Any:
        if stamp.frame_index == CUT_FRAME:
            assert StaleAnswerModel.start.wait(LIMIT_S), "no answer was asked for before the cut"
        return commit(self, prepared, stamp)

    monkeypatch.setattr(TextureUpdater, "commit", waits)
    rng = np.random.default_rng(0)
    shots = [rng.integers(0, 256, (128, 192, 3), dtype=np.uint8) for _ in range(2)]
    frames = [shots[0]] * CUT_FRAME + [shots[1]] * (FRAMES - CUT_FRAME)
    return str(make_video(tmp_path / "cut.mkv", frames, FPS, codec="ffv1", pixel_format="yuv444p"))


def run(source: str, **answer: Any) -> list[Any]:
    config = Config(
        source=source,
        answer=AnswerConfig(every_s=None, **answer),
        pipeline=PipelineConfig(single_process=True, answers="newest"),
    )
    return list(run_in_threads(config, model_loader=f"{__name__}:StaleAnswerModel").run())


def of(events: Sequence[Any], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_a_cut_cancels_a_partial_answer(cut_video: str) -> None:
    events = run(cut_video, on_cut="cancel")
    (cancelled,) = of(events, AnswerCancelled)
    assert (cancelled.answer, cancelled.trigger, cancelled.text, cancelled.by) == (0, "start", "stale", "cut")
    assert (cancelled.by_frame_index, cancelled.by_pts_s) == (CUT_FRAME, 0.7)
    assert cancelled.frame_index < CUT_FRAME
    answers = of(events, Answer)
    assert [(answer.answer, answer.trigger) for answer in answers][:1] == [(1, "cut")]
    assert all("stale" not in answer.text for answer in answers)
    at = events.index(cancelled)
    assert not [text for text in of(events[at:], AnswerDeltaEvent) if text.answer == 0]
    assert events[-1].dropped.get("answer.cancelled") == 1
    assert events[-1].answers == len(answers)


@pytest.mark.parametrize(
    ("on_cut", "speaks", "cancels"),
    [("finish", True, False), (True, True, False), ("cancel", True, True), (False, False, False)],
)
def test_the_values_of_the_key(on_cut: Any, speaks: bool, cancels: bool) -> None:
    config = Config(source="a.mp4", answer=AnswerConfig(on_cut=on_cut))
    info = SourceInfo("a.mp4", 64, 48, 10.0, None, None, live=True, codec="", pixel_format="")
    policy = RunPlan.of(config, info).schedule
    assert (policy.answer.on_cut is not False, policy.answer.on_cut == "cancel") == (speaks, cancels)


def test_an_invalid_value_is_refused_with_the_valid_ones() -> None:
    message = "answer.on_cut should be on or off, or be 'finish' or 'cancel', got 'stop'"
    with pytest.raises(ConfigError, match=message):
        build_config([layer_from_assignment("answer.on_cut=stop")])
    assert build_config([layer_from_assignment("answer.on_cut=cancel")]).answer.on_cut == "cancel"


@pytest.mark.parametrize(("on_cut", "count"), [("cancel", 1), ("finish", 0)])
def test_in_lockstep_a_notice_reports_that_nothing_can_be_cancelled(on_cut: Any, count: int, tmp_path: Path) -> None:
    path = make_video(tmp_path / "a.mkv", list(moving_square(3, 64, 64)), FPS, codec="ffv1", pixel_format="yuv444p")
    config = Config(source=str(path), answer=AnswerConfig(on_cut=on_cut), pipeline=PipelineConfig(single_process=True))
    events = list(run_in_threads(config, model_loader="tests.support.answer_models:FakeAnswerModel").run())
    messages = [event.message for event in of(events, Notice) if event.code == "cancel-off"]
    assert len(messages) == count
    assert all("answer.on_cut = cancel has no effect" in message for message in messages)


class ScriptedLink:
    """Server link that receives scripted messages, step by step, and then ends the run."""

    def __init__(self, *steps: Sequence[tuple[bytes, Envelope]]) -> None:
        self._steps = list(steps)
        self._now: list[tuple[bytes, Envelope]] = []
        self.messages: list[Message] = []

    def receive(self, timeout_ms: int = 0) -> tuple[bytes, Envelope] | None:
        if timeout_ms:
            if not self._steps:
                raise CancelledError
            self._now = list(self._steps.pop(0))
        return self._now.pop(0) if self._now else None

    def send(self, client: bytes, message: Message, arrays: object = ()) -> bool:
        self.messages.append(message)
        return True

    def close(self) -> None:
        pass


def test_a_waiting_packet_is_dropped_by_a_cancel() -> None:
    message, parts = token_message(0, 1, make_token_packet(FrameStamp(0, 0, 0), TileGrid.of(64, 64)), QUESTION)
    packet = Envelope(message, tuple(memoryview(part.tobytes()) for part in parts))
    client = b"one"
    link = ScriptedLink(
        [(client, Envelope(Connect())), (client, Envelope(TurnRequest()))],
        [(client, packet), (client, Envelope(Cancel())), (client, Envelope(TurnRequest()))],
        [],
    )
    transport: Any = type("Ports", (), {"server_link": lambda *_: link})()
    stage = AnswerServer(lambda: FakeAnswerModel(Config()), ServerOptions("inproc://x"), transport, RunControl())
    with pytest.raises(CancelledError):
        stage.run()
    assert [message.turn for message in link.messages if isinstance(message, TurnGrant)] == [1, 2]
    assert not [message for message in link.messages if isinstance(message, (AnswerDelta, AnswerReply, TurnExpired))]


def test_the_transcript_reports_it_and_drops_the_partial_text() -> None:
    assert EventText().line(STALE) == "answer cancelled by the cut at 0:00.7"
    transcript = Transcript(DisplayClock(live=False))
    transcript.add(AnswerDeltaEvent(answer=4, text="a red", pts_s=0.2))
    assert transcript.partial is not None
    entry = transcript.add(STALE)
    assert transcript.partial is None
    assert entry is not None
    assert entry.is_message


def test_a_cancelled_answer_is_one_line_of_json() -> None:
    assert encode_event(STALE) == (
        '{"type":"cancelled","answer":4,"frame_index":2,"pts_s":0.2,"trigger":"every","text":"a red","by":"cut",'
        '"by_frame_index":7,"by_pts_s":0.7}'
    )
