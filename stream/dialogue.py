"""The allocate stage's side of the conversation with the answer stage: packets go out, text and feedback come in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from arr_coc import errors as arr_coc_errors
from arr_coc.types import NS_PER_S, Feedback, FramePacket, FrameStamp, QueryEmbedding, TokenPacket
from stream import errors as stream_errors
from stream.clock import Clock
from stream.errors import StageDied, TransportError
from stream.events import Answer, AnswerText, AnswerTiming, Event
from stream.messages import Answered, Cancel, Credit, End, Failed, Hello, Joined, Stopped, Text
from stream.packets import embedding_of, feedback_of, frame_message, token_message
from stream.snapshot import SnapshotWriter
from stream.stages.base import USER_ERRORS
from stream.transport import Link, Received

NS_PER_MS = 1_000_000


@dataclass(slots=True)
class Question:
    """An answer that is awaited."""

    number: int
    stamp: FrameStamp
    trigger: str
    tiles: int
    asked_ns: int
    first_text_ns: int | None = None


class Dialogue:
    """What has been asked, what has been heard, and whether the answer stage wants more.

    `hear` yields the events that waiting messages make, and keeps hello, embedding and feedback for their reader;
    `heard` counts messages.
    """

    def __init__(self, link: Link, clock: Clock, query: str, snapshot: SnapshotWriter | None) -> None:
        self.link = link
        self._clock = clock
        self._query = query
        self._snapshot = snapshot
        self._credits = 0
        self._asked = 0
        self._question: Question | None = None
        self._feedback: Feedback | None = None
        self._heard_ns = 0
        self.heard = 0
        self.joined = False
        self.stopped = False
        self.hello: Hello | None = None
        self.embedding: QueryEmbedding | None = None

    @property
    def wants_packet(self) -> bool:
        """The answer stage has granted a credit."""
        return self._credits > 0

    @property
    def busy(self) -> bool:
        """An answer is awaited."""
        return self._question is not None

    @property
    def silence_s(self) -> float:
        """How long nothing has been heard of the answer that is awaited; 0 where none is."""
        if self._question is None:
            return 0.0
        return (self._clock.now_ns() - max(self._heard_ns, self._question.asked_ns)) / NS_PER_S

    def ask(self, packet: TokenPacket | FramePacket, trigger: str) -> None:
        """Sends a packet for the credit that was granted. A FramePacket's image may change once this has returned."""
        if isinstance(packet, TokenPacket):
            message, arrays = token_message(self._asked, packet)
            self.link.send(message, arrays)
        else:
            if self._snapshot is not None:
                self._snapshot.write(packet.image)
            else:
                packet = dataclasses.replace(packet, image=packet.image.copy())
            whole, arrays = frame_message(self._asked, packet, in_snapshot=self._snapshot is not None)
            self.link.send(whole, arrays)
        self._question = Question(self._asked, packet.stamp, trigger, packet.grid.tiles, self._clock.now_ns())
        self._credits -= 1
        self._asked += 1

    def end(self) -> None:
        """Nothing more will be asked."""
        self.link.send(End(reason="finished"))

    def cancel(self) -> None:
        """What was asked is not wanted any more. A peer that is gone need not be told."""
        self.link.offer(Cancel())

    def hear(self, timeout_ms: int) -> Iterator[Event]:
        """The events of every message that is there; waits at most `timeout_ms` for the first one.

        Raises StageDied, or the error that the user can put right, where the answer stage says that it failed.
        """
        received = self.link.receive(timeout_ms)
        while received is not None:
            self._heard_ns = self._clock.now_ns()
            self.heard += 1
            event = self._event(received)
            if event is not None:
                yield event
            received = self.link.receive()

    def take_feedback(self) -> Feedback | None:
        """What the answers have taught since the last call; the newest one where there were several."""
        feedback, self._feedback = self._feedback, None
        return feedback

    def _event(self, received: Received) -> Event | None:
        message = received.message
        if isinstance(message, Credit):
            self._credits += message.count
        elif isinstance(message, Joined):
            self.joined = True
        elif isinstance(message, Hello):
            self.embedding = embedding_of(message, received.parts)
            self.hello = message
        elif isinstance(message, Stopped):
            self.stopped = True
        elif isinstance(message, Failed):
            raise _failure(message)
        elif isinstance(message, Text):
            return self._text(message)
        elif isinstance(message, Answered):
            return self._answered(message, received)
        else:
            raise TransportError(f"the answer stage sent a message of the wrong kind, {type(message).__name__}")
        return None

    def _asked_for(self, number: int) -> Question:
        if self._question is None or self._question.number != number:
            raise TransportError(f"the answer stage speaks of answer {number}, which was not asked for")
        return self._question

    def _text(self, message: Text) -> AnswerText:
        question = self._asked_for(message.answer)
        question.first_text_ns = question.first_text_ns or self._heard_ns
        return AnswerText(answer=message.answer, text=message.text)

    def _answered(self, message: Answered, received: Received) -> Answer:
        question = self._asked_for(message.answer)
        self._question = None
        self._feedback = feedback_of(message, received.parts) or self._feedback
        stamp = question.stamp
        at_s = stamp.media_ns / NS_PER_S
        first_ns = question.first_text_ns or self._heard_ns
        return Answer(
            answer=message.answer,
            frame_index=stamp.frame_index,
            pts_s=at_s,
            start_s=at_s,
            end_s=at_s,
            trigger=question.trigger,
            query=self._query,
            text=message.text,
            tokens_used=message.tokens_used,
            tokens_total=question.tiles,
            text_tokens=message.text_tokens,
            timing=AnswerTiming(
                encode_ms=message.encode_ms,
                prefill_ms=message.prefill_ms,
                decode_ms=message.decode_ms,
                ttft_ms=(first_ns - stamp.capture_ns) / NS_PER_MS,
                total_ms=(self._heard_ns - stamp.capture_ns) / NS_PER_MS,
            ),
        )


def _failure(message: Failed) -> Exception:
    """The error that the answer stage met, as this side raises it."""
    kind = getattr(arr_coc_errors, message.error, None) or getattr(stream_errors, message.error, None)
    if isinstance(kind, type) and issubclass(kind, USER_ERRORS):
        return kind(message.message)
    return StageDied("answer", message.message)
