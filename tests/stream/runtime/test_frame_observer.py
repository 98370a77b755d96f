"""Observers of the frame stages, which extensions add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import pytest

from stream.config import AnswerConfig, CaptureConfig, Config, PipelineConfig
from stream.events import Answer, Event, FrameReady, Notice, Summary
from stream.extension import Extension, registry
from stream.media import SourceInfo
from stream.protocol.buffers import SharedFrameWriter
from stream.protocol.messages import AnswerReply, Message, TokenPacketMessage
from stream.runtime.frame_stages import run_in_threads
from stream.stages.frame_observer import FrameObserver
from stream.transport import Envelope, LinkObserver

NOTICE = Notice(code="seen", message="a frame was seen")

observers: list[EventObserver] = []
"""Observers that the runs of this module have opened."""


class EventObserver(FrameObserver):
    """Observer of events, with a notice about the first one."""

    def __init__(self, info: SourceInfo) -> None:
        self.info = info
        self.events: list[Event] = []
        self.notices = [NOTICE]
        self.is_closed = False
        observers.append(self)

    def observe_event(self, event: Event) -> None:
        self.events.append(event)

    def take_notice(self) -> Notice | None:
        return self.notices.pop() if self.events and self.notices else None

    def close(self) -> None:
        self.is_closed = True


class MessageObserver(EventObserver):
    """Observer of events and messages."""

    def __init__(self, info: SourceInfo) -> None:
        super().__init__(info)
        self.notices = []
        self.messages: list[Message] = []

    def link_observer(self, snapshot: SharedFrameWriter | None) -> LinkObserver:
        return self

    def observe_sent(self, message: Message, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self.messages.append(message)

    def observe_received(self, envelope: Envelope) -> None:
        self.messages.append(envelope.message)


def event_observer(config: Config, info: SourceInfo) -> FrameObserver | None:
    return EventObserver(info)


def message_observer(config: Config, info: SourceInfo) -> FrameObserver | None:
    return MessageObserver(info)


def no_observer(config: Config, info: SourceInfo) -> FrameObserver | None:
    return None


def test_they_see_all_events_then_a_summary_and_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("event_observer", "no_observer", "message_observer", "message_observer")
    added = [Extension(name=name, frame_observer=f"{__name__}:{name}") for name in names]
    every_extension = (*registry.extensions(), *added)
    monkeypatch.setattr(registry, "extensions", lambda: every_extension)
    observers.clear()
    config = Config(
        source="scene:demo",
        capture=CaptureConfig(max_frames=30),
        answer=AnswerConfig(every_s=1.0),
        pipeline=PipelineConfig(single_process=True),
    )
    events = list(run_in_threads(config, model_loader="tests.support.answer_models:FakeAnswerModel").run())

    first, second, third = observers
    assert first.info.name == "scene:demo"
    assert all(observer.is_closed for observer in observers)
    assert first.events == second.events == third.events
    assert events.count(NOTICE) == 1
    *seen, summary = first.events
    assert isinstance(summary, Summary)
    assert summary.frames == 30
    for kind in (FrameReady, Answer):
        assert [event for event in seen if isinstance(event, kind)] == [
            event for event in events if isinstance(event, kind)
        ]
    assert isinstance(second, MessageObserver)
    assert isinstance(third, MessageObserver)
    assert second.messages == third.messages
    answers = sum(isinstance(event, Answer) for event in seen)
    assert answers
    assert sum(isinstance(message, TokenPacketMessage) for message in second.messages) == answers
    assert sum(isinstance(message, AnswerReply) for message in second.messages) == answers
