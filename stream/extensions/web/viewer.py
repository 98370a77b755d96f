"""One viewer of the page: the messages that wait for it, its credits for pictures, and limits on its messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from stream.untrusted import COUNT_MAX, QUERY_LIMIT_CHARS

Decoded = TypeVar("Decoded")

TEXT_BYTES_MAX = 64 * 1024
"""Longest message of a viewer; a question has at most 4,000 characters."""

TEXTS_WAITING = 200
"""Limit of messages that wait for a viewer; beyond it the oldest is dropped, and the viewer gets the number."""

CREDITS = 2
"""Pictures that may be on their way to a viewer that has not confirmed one."""

WIDTHS = (320, 640, 1280, 1920)
"""Greatest widths among which a viewer may choose, in pixels."""

RATE_MAX = 60.0

MESSAGES_A_SECOND = 100
"""A viewer that sends more than twice as many at once, or more than this for long, is turned away."""


class ViewerMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message of a viewer. `ok`: number of further pictures that may come; `ask`: a question; `rate` and `width`: of
    pictures; `choose`: the key of an offered source; `open`: another source's address; `stop`: end the run; `clock`: a
    number that comes back with the program's time. `camera`: the one that the message is for, of several; None for
    all that the viewer sees."""

    ok: int | None = None
    clock: int | None = None
    ask: str | None = None
    rate: float | None = None
    width: int | None = None
    choose: str | None = None
    open: str | None = None
    stop: bool = False
    camera: str | None = None

    @property
    def chooses(self) -> bool:
        """True if the message is about the source."""
        return self.choose is not None or self.open is not None or self.stop


_decoder = msgspec.json.Decoder(ViewerMessage)


class MessageRefused(Exception):
    """A viewer's message cannot be followed; the error is sent to the viewer."""


def decode_message(decoder: msgspec.json.Decoder[Decoded], text: str | bytes) -> Decoded:
    """Return a viewer's message. Raises MessageRefused, in one line."""
    if len(text) > TEXT_BYTES_MAX:
        raise MessageRefused(f"a message has at most {TEXT_BYTES_MAX} bytes")
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise MessageRefused(f"not a message: {error}") from error


def check_length(question: str) -> None:
    """Raise MessageRefused for a question that is too long."""
    if len(question) > QUERY_LIMIT_CHARS:
        raise MessageRefused(f"a question has at most {QUERY_LIMIT_CHARS} characters, this one has {len(question)}")


def read_message(text: str | bytes) -> ViewerMessage:
    """Return a message of a viewer of a run. Raises MessageRefused."""
    message = decode_message(_decoder, text)
    if message.ok is not None and not 1 <= message.ok <= CREDITS:
        raise MessageRefused(f"ok is from 1 to {CREDITS}")
    if message.clock is not None and not 0 <= message.clock <= COUNT_MAX:
        raise MessageRefused(f"clock is from 0 to {COUNT_MAX}")
    if message.rate is not None and not 0 < message.rate <= RATE_MAX:
        raise MessageRefused(f"rate is above 0 and at most {RATE_MAX:g}")
    if message.width is not None and message.width not in WIDTHS:
        raise MessageRefused(f"width is one of {', '.join(map(str, WIDTHS))}")
    check_length(message.ask or "")
    return message


class Viewer:
    """Messages for one viewer, taken out one at a time: texts first, and a picture if the viewer has a credit.

    Belongs to the event loop. A picture is never queued: the newest one is sent when the viewer is ready for it.
    `greatest_px` limits the width that it may choose. `wake` is set if something waits; a connection that shows several
    cameras has one for all of its viewers. `on_taken` is called when a picture is taken out, as the next may be due.
    """

    def __init__(
        self,
        rate: float,
        greatest_px: int,
        wake: asyncio.Event | None = None,
        on_taken: Callable[[], None] = lambda: None,
    ) -> None:
        self.credits = CREDITS
        self.width = self._greatest_px = greatest_px
        self.rate = self._greatest_rate = rate
        self.wake = wake or asyncio.Event()
        self.pictures_sent = 0
        self._on_taken = on_taken
        self._texts: deque[bytes] = deque()
        self._lost_texts = 0
        self._picture: bytes | None = None
        self._next_s = 0.0

    def choose(self, message: ViewerMessage) -> None:
        """Apply a viewer's settings of its pictures."""
        if message.ok is not None:
            self.credits = min(CREDITS, self.credits + message.ok)
        if message.rate is not None:
            self.rate = min(message.rate, self._greatest_rate)
        if message.width is not None:
            self.width = min(message.width, self._greatest_px)

    def send(self, text: bytes) -> None:
        """Queue a message for the viewer; drop the oldest beyond the limit."""
        if len(self._texts) >= TEXTS_WAITING:
            self._texts.popleft()
            self._lost_texts += 1
        self._texts.append(text)
        self.wake.set()

    def due_s(self) -> float | None:
        """Return when the viewer wants the next picture; None if it is not ready for one."""
        if self.credits > 0 and self._picture is None:
            return self._next_s
        return None

    def show(self, picture: bytes, now_s: float) -> bool:
        """Queue a picture for the viewer, if it is ready for one; return whether it is."""
        due_s = self.due_s()
        interval_s = 1 / self.rate
        if due_s is None or now_s < due_s - interval_s / 4:
            return False
        self._next_s = max(due_s, now_s - interval_s) + interval_s
        self.credits -= 1
        self._picture = picture
        self.wake.set()
        return True

    def next(self) -> bytes | str | None:
        """Return the next message, a text as str and a picture as bytes; None if none waits."""
        if self._lost_texts:
            count = self._lost_texts
            self._lost_texts = 0
            return msgspec.json.encode({"topic": "missed", "count": count}).decode()
        if self._texts:
            return self._texts.popleft().decode()
        picture = self._picture
        self._picture = None
        if picture is not None:
            self.pictures_sent += 1
            self._on_taken()
        return picture
