"""Fake answer models for tests of the pipeline: loaded by name, in this process or in the answer process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from arr_coc.errors import ContextLengthError, ModelError, ModelNotFound
from arr_coc.types import Feedback, FramePacket, QueryEmbedding, TokenPacket
from stream.answer.model import AnswerStats, GlanceStats, Packet
from stream.config import Config


def on_packet(frame_index: int) -> None:
    """Called with the frame of every packet, in the middle of its answer; for tests to replace."""


GLANCED_AT = "ARR_COC_TEST_GLANCED_AT"
"""Environment variable: the file that a killed process leaves."""

BRIGHT = 200
"""Of 255: a pixel that is brighter makes a check say yes."""


class FakeAnswerModel:
    """Says what it was shown; deterministic, and so is its feedback.

    Its yes/no checks report whether something bright is there.
    """

    model_id = "fake"
    knows_levels = True
    knows_wide = False
    known_world: str | None = None
    allocator = b""
    can_glance = False
    attention_readable = True
    takes_device_pixels = False
    notice = ""

    def __init__(self, config: Config) -> None:
        self._spoken: AnswerStats | None = None

    def select_client(self, client: bytes) -> None:
        """It makes no difference between clients."""

    def drop_client(self, client: bytes) -> None:
        """It remembers nothing."""

    def embed_query(self, query: str) -> QueryEmbedding:
        return QueryEmbedding(query, np.full((max(1, len(query.split())), 8), 0.5, np.float32), self.model_id)

    def check_standing_query(self, query: str) -> tuple[str, ...]:
        """Takes any."""
        return ()

    def glance(self, packet: TokenPacket, query: str) -> GlanceStats:
        raise ModelError("it cannot look")

    def score_yes_no(self, packet: Packet, query: str) -> tuple[float, float]:
        on_packet(packet.stamp.frame_index)
        self._spoken = AnswerStats(len(packet.regions), 0, 1.0, 2.0, 0.0, None)
        return (0.99 if pixels_of(packet).max() > BRIGHT else 0.01), 1.0

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        yield f"frame {packet.stamp.frame_index}"
        on_packet(packet.stamp.frame_index)
        yield f" sum {pixels_of(packet).sum(dtype=np.int64)}"
        attention = np.linspace(1, 0, len(packet.regions), dtype=np.float32)
        self._spoken = AnswerStats(
            tokens_used=len(packet.regions),
            text_tokens=4,
            encode_ms=1.0,
            prefill_ms=2.0,
            decode_ms=3.0,
            feedback=Feedback(packet.stamp, packet.regions, attention, -attention),
        )

    @property
    def last_stats(self) -> AnswerStats:
        assert self._spoken is not None
        return self._spoken


class GlancingAnswerModel(FakeAnswerModel):
    """Looks at the brightest region of an overview."""

    can_glance = True

    def glance(self, packet: TokenPacket, query: str) -> GlanceStats:
        assert packet.is_glance
        on_packet(packet.stamp.frame_index)
        attention = packet.host_pixels.mean(axis=(1, 2, 3), dtype=np.float32)
        attention = (attention == attention.max()).astype(np.float32)
        feedback = Feedback(packet.stamp, packet.regions, attention, np.zeros_like(attention))
        return GlanceStats(feedback, len(packet.regions), 1.0, 2.0, 7)


class KilledGlancingAnswerModel(GlancingAnswerModel):
    """Its process is killed in the middle of the first glance of all, after which the named file is there."""

    def glance(self, packet: TokenPacket, query: str) -> GlanceStats:
        mark = Path(os.environ[GLANCED_AT])
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().glance(packet, query)


class BlindAnswerModel(GlancingAnswerModel):
    """Finds out too late that it cannot look."""

    def glance(self, packet: TokenPacket, query: str) -> GlanceStats:
        raise ModelError("the attention of blind cannot be read; turn glances off")


class UnreadableAnswerModel(FakeAnswerModel):
    """Its attention cannot be read, so it cannot glance."""

    attention_readable = False


class DrawnWorldAnswerModel(FakeAnswerModel):
    known_world = "drawn scenes"


class PatientAnswerModel(FakeAnswerModel):
    """Answers its first packet, and speaks on about the second one until it is stopped."""

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        yield "first"
        if self._spoken is None:
            yield from super().answer(packet, query, should_stop)
            return
        while not should_stop():
            threading.Event().wait(0.01)
            yield "."


class SlowAnswerModel(FakeAnswerModel):
    """Thinks for longer than the next frames take."""

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        threading.Event().wait(0.03)
        yield from super().answer(packet, query, should_stop)


class SilentAnswerModel(FakeAnswerModel):
    """Says nothing, until it is stopped."""

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        while not should_stop():
            threading.Event().wait(0.01)
        yield from ()


class BrokenAnswerModel(FakeAnswerModel):
    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        yield "half an answer"
        raise ArithmeticError("the spoon is bent")


class KilledAnswerModel(FakeAnswerModel):
    """Its process is killed in the middle of the second answer."""

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        if self._spoken is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().answer(packet, query, should_stop)


class DoubtingAnswerModel(FakeAnswerModel):
    """Is never sure of a yes."""

    def score_yes_no(self, packet: Packet, query: str) -> tuple[float, float]:
        yes, certain = super().score_yes_no(packet, query)
        return min(yes, 0.8), certain


class TalkativeAnswerModel(FakeAnswerModel):
    """Answers with something else than yes or no."""

    def score_yes_no(self, packet: Packet, query: str) -> tuple[float, float]:
        return super().score_yes_no(packet, query)[0], 0.01


class WordlessAnswerModel(FakeAnswerModel):
    """Has no word for yes."""

    def check_standing_query(self, query: str) -> tuple[str, ...]:
        raise ModelError("no single token for yes")


class PickyAnswerModel(FakeAnswerModel):
    def embed_query(self, query: str) -> QueryEmbedding:
        if query.startswith("refuse"):
            raise ContextLengthError("too long")
        return super().embed_query(query)


class HangingAnswerModel(FakeAnswerModel):
    """Answers its first packet, and hangs in the second answer, deaf to everybody."""

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        if self._spoken is not None:
            threading.Event().wait()
        yield from super().answer(packet, query, should_stop)


class LeavingAnswerModel(FakeAnswerModel):
    """Ends its process without telling anybody."""

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        print("no more memory", flush=True)
        os._exit(3)
        yield ""


def open_missing(config: Config) -> FakeAnswerModel:
    raise ModelNotFound("there is no folder nowhere")


def pixels_of(packet: Packet) -> np.ndarray:
    assert isinstance(packet, (TokenPacket, FramePacket))
    return packet.host_pixels if isinstance(packet, TokenPacket) else packet.image


class DeviceAnswerModel(FakeAnswerModel):
    """Takes pixels on their device, and says where they came from."""

    takes_device_pixels = True

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        there = isinstance(packet, TokenPacket) and not isinstance(packet.pixels, np.ndarray)
        host = replace(packet, pixels=packet.host_pixels) if isinstance(packet, TokenPacket) else packet
        yield from super().answer(host, query, should_stop)
        yield " there" if there else " here"
