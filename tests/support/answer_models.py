"""Fake answer models for tests of the pipeline: loaded by name, in this process or in the answer process."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ContextLengthError, ModelError, ModelNotFound, OptionError
from arr_coc.qwen.families import FAMILIES
from arr_coc.types import Feedback, FramePacket, QueryEmbedding, Question, TokenPacket, Work, shown_tokens
from stream.answer.memory import GroupMemory
from stream.answer.model import AnswerStats, ClientQuestion, Packet, ask_alone
from stream.config import Config

log = logging.getLogger(__name__)


def on_packet(frame_index: int) -> None:
    """Called with the frame of every packet, in the middle of its answer; for tests to replace."""


GLANCED_AT = "ARR_COC_TEST_GLANCED_AT"
"""Environment variable: the file that a killed process writes."""

BRIGHT = 200
"""Of 255: a brighter pixel makes a check answer yes."""


class FakeAnswerModel:
    """Answers with what it was shown; deterministic, and so is its feedback.

    Its yes/no checks report whether any pixel is bright.
    """

    model_id = "fake"
    knows_levels = True
    knows_wide = False
    known_world: str | None = None
    allocator = b""
    can_glance = False
    attention_readable = True
    takes_device_pixels = False
    memory: GroupMemory | None = None
    notice = ""

    slots = 1

    def __init__(self, config: Config) -> None:
        self.client = b""
        self._answer_stats: AnswerStats | None = None
        self._open: dict[ClientQuestion, Iterator[str]] = {}

    def drop_client(self, client: bytes) -> None:
        """It remembers nothing."""

    def embed_query(self, query: str) -> QueryEmbedding:
        return QueryEmbedding(query, np.full((max(1, len(query.split())), 8), 0.5, np.float32), self.model_id)

    def check_watch(self, query: str) -> tuple[str, ...]:
        """Accept any query."""
        return ()

    def check_schema(self, schema: AnswerSchema) -> None:
        """Accept any schema."""

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        raise ModelError("it cannot look")

    def score_yes_no(self, packet: Packet, query: str) -> tuple[float, float]:
        on_packet(packet.stamp.frame_index)
        self._answer_stats = AnswerStats(Work(len(packet.regions), 0, 1.0, 2.0, 0.0))
        return (0.99 if pixels_of(packet).max() > BRIGHT else 0.01), 1.0

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        yield f"frame {packet.stamp.frame_index}"
        on_packet(packet.stamp.frame_index)
        yield f" sum {pixels_of(packet).sum(dtype=np.int64)}"
        attention = np.linspace(1, 0, len(packet.regions), dtype=np.float32)
        self._answer_stats = AnswerStats(
            Work(tokens_used=len(packet.regions), text_tokens=4, encode_ms=1.0, prefill_ms=2.0, decode_ms=3.0),
            feedback=Feedback(packet.stamp, packet.regions, attention, -attention),
        )

    def hold(self, client: bytes) -> None:
        """It makes no difference between slots."""

    def release(self, client: bytes) -> None:
        self._open = {question: pieces for question, pieces in self._open.items() if question.client != client}

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        for question in questions:
            self.client = question.client
            if question.part.checks:
                question.scores = tuple(self.score_yes_no(question.packet, check) for check in question.part.checks)
                question.stats, question.ended = self._answer_stats, True
            else:
                self._open[question] = self.answer(question.packet, question.part.text)
                self._advance(question)

    def step(self) -> Sequence[ClientQuestion]:
        stepped = list(self._open)
        for question in stepped:
            self._advance(question)
        return stepped

    def finish(self, question: ClientQuestion) -> None:
        del self._open[question]
        question.ended, question.stats = True, AnswerStats(Work(0, 0, 0.0, 0.0, 0.0))

    def _advance(self, question: ClientQuestion) -> None:
        question.piece = ""
        try:
            question.piece = next(self._open[question])
        except StopIteration:
            question.ended, question.stats = True, self._answer_stats
        except Exception as error:
            question.ended, question.error = True, error
        if question.ended:
            del self._open[question]


class LocatingAnswerModel(FakeAnswerModel):
    """Answers with the question, such as one that is JSON with boxes, as a model of `family`."""

    family = "qwen3_vl"

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        yield query[:7]
        yield query[7:]
        grid, pixels = packet.grid, FAMILIES[self.family].coordinates == "pixels"
        width, height = (28 * grid.cols, 28 * grid.rows) if pixels else (1000, 1000)
        extent = width * grid.width_px / grid.padded_width_px, height * grid.height_px / grid.padded_height_px
        self._answer_stats = AnswerStats(Work(len(packet.regions), 4, 1.0, 2.0, 3.0), extent=extent)


class PixelAnswerModel(LocatingAnswerModel):
    """Locates things in pixels."""

    family = "qwen2_5_vl"


class MemoryAnswerModel(FakeAnswerModel):
    """Keeps groups of pictures, and names the frames and pixels of all that its client was shown."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.memory = GroupMemory(config.answer.memory.tokens)

    def drop_client(self, client: bytes) -> None:
        self.memory.drop(client)

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        self.client = client
        group = self._shown(packet)
        return AnswerStats(Work(shown_tokens(group), encode_ms=1.0, prefill_ms=2.0), self._feedback(group))

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        assert isinstance(packet, TokenPacket)
        group = self._shown(packet)
        on_packet(packet.stamp.frame_index)
        frames = " ".join(f"{member.stamp.frame_index}:{pixels_of(member).sum(dtype=np.int64)}" for member in group)
        yield f"{query} {frames}"
        tokens = shown_tokens(group)
        new = len(packet.regions)
        self._answer_stats = AnswerStats(
            Work(tokens, 4, 1.0, 2.0, 3.0, prefilled_tokens=new + 5, appended_tokens=new, memory_tokens=tokens + 1),
            self._feedback(group),
        )

    def score_yes_no(self, packet: Packet, query: str) -> tuple[float, float]:
        assert isinstance(packet, TokenPacket)
        group = self._shown(packet)
        self._answer_stats = AnswerStats(Work(sum(len(member.regions) for member in group), 0, 1.0, 2.0, 0.0))
        return (0.99 if max(pixels_of(member).max(initial=0) for member in group) > BRIGHT else 0.01), 1.0

    def _shown(self, packet: TokenPacket) -> list[TokenPacket]:
        return [*([] if packet.place is None else self.memory.before(self.client, packet.place)), packet]

    def _feedback(self, group: list[TokenPacket]) -> Feedback:
        regions = np.concatenate([member.regions for member in group])
        attention = np.linspace(1, 0, len(regions), dtype=np.float32)
        return Feedback(group[-1].stamp, regions, attention, -attention)


class GlancingAnswerModel(FakeAnswerModel):
    """Glances at the brightest region of an overview."""

    can_glance = True

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        assert packet.is_glance
        on_packet(packet.stamp.frame_index)
        attention = packet.host_pixels.mean(axis=(1, 2, 3), dtype=np.float32)
        attention = (attention == attention.max()).astype(np.float32)
        feedback = Feedback(packet.stamp, packet.regions, attention, np.zeros_like(attention))
        return AnswerStats(Work(len(packet.regions), encode_ms=1.0, prefill_ms=2.0, flops=7), feedback)


class KilledGlancingAnswerModel(GlancingAnswerModel):
    """Its process is killed in the middle of the very first glance, after which the named file exists."""

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        mark = Path(os.environ[GLANCED_AT])
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().glance(client, packet, query)


class BlindAnswerModel(GlancingAnswerModel):
    """Finds out too late that it cannot look."""

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        raise ModelError("the attention of blind cannot be read; turn glances off")


class UnreadableAnswerModel(FakeAnswerModel):
    """Its attention cannot be read, so it cannot glance."""

    attention_readable = False


class WarningAnswerModel(FakeAnswerModel):
    """Warns in the log when it is loaded and at each answer."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        log.warning("loaded with %s", "care")

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        log.warning("frame %d is answered", packet.stamp.frame_index)
        return super().answer(packet, query)


class DrawnWorldAnswerModel(FakeAnswerModel):
    known_world = "drawn scenes"


class PatientAnswerModel(FakeAnswerModel):
    """Answers its first packet, and speaks on about the second one without end."""

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        yield "first"
        if self._answer_stats is None:
            yield from super().answer(packet, query)
            return
        while True:
            threading.Event().wait(0.01)
            yield "."


class SlowAnswerModel(FakeAnswerModel):
    """Thinks for longer than the next frames take."""

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        threading.Event().wait(0.03)
        yield from super().answer(packet, query)


class SilentAnswerModel(FakeAnswerModel):
    """Generates no text, and does not end."""

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        while True:
            threading.Event().wait(0.01)
            yield ""


class BrokenAnswerModel(FakeAnswerModel):
    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        yield "half an answer"
        raise ArithmeticError("the spoon is bent")


class KilledAnswerModel(FakeAnswerModel):
    """Its process is killed in the middle of the second answer."""

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        if self._answer_stats is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().answer(packet, query)


class WordlessAnswerModel(FakeAnswerModel):
    """Model without a word for yes."""

    def check_watch(self, query: str) -> tuple[str, ...]:
        raise ModelError("no single token for yes")


class NewsAnswerModel(FakeAnswerModel):
    """Names the brightest quarter of the picture, and earlier answers with their times; a previous answer is likely if
    it is that text."""

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        super().ask([question for question in questions if question.part.checks])
        for question in questions:
            if not question.part.checks:
                self._open[question] = self._pieces(question)
                self._advance(question)

    def _pieces(self, question: ClientQuestion) -> Iterator[str]:
        packet, previous = question.packet, question.part.previous
        history = [f"{answer.text.split(',')[0]} at {answer.media_ns // 10**6} ms" for answer in question.part.history]
        text = ", ".join([f"quarter {pixels_of(packet).max() // 64}", *history])
        same = None if previous is None else 0.875 if previous.text == text else 0.125
        yield text[:9]
        on_packet(packet.stamp.frame_index)
        yield text[9:]
        is_repeat = previous is not None and same is not None and same >= previous.same_above
        attention = np.linspace(1, 0, len(packet.regions), dtype=np.float32)
        feedback = Feedback(packet.stamp, packet.regions, attention, -attention)
        self._answer_stats = AnswerStats(
            Work(len(packet.regions), 0 if is_repeat else 4, 1.0, 2.0, 3.0), feedback, same=same
        )


class CountingAnswerModel(NewsAnswerModel):
    """Answers with JSON of the brightest quarter; every fourth frame asked about breaks off in the middle."""

    def check_schema(self, schema: AnswerSchema) -> None:
        if "refused" in schema.fields:
            raise OptionError("refused")

    def _pieces(self, question: ClientQuestion) -> Iterator[str]:
        packet, previous = question.packet, question.part.previous
        quarter = int(pixels_of(packet).max()) // 64
        text = json.dumps({"quarter": quarter, "bright": quarter > 1})
        text = text[:9] if packet.stamp.frame_index % 4 == 3 else text
        assert question.part.schema is not None
        same = None if previous is None else 0.875 if previous.text == text else 0.125
        yield text[:5]
        yield text[5:]
        self._answer_stats = AnswerStats(Work(len(packet.regions), 4, 1.0, 2.0, 3.0), same=same)


class PickyAnswerModel(FakeAnswerModel):
    def embed_query(self, query: str) -> QueryEmbedding:
        if query.startswith("refuse"):
            raise ContextLengthError("too long")
        return super().embed_query(query)


class HangingAnswerModel(FakeAnswerModel):
    """Answers its first packet, and hangs in the second answer, deaf to everybody."""

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        if self._answer_stats is not None:
            threading.Event().wait()
        yield from super().answer(packet, query)


def open_missing(config: Config) -> FakeAnswerModel:
    raise ModelNotFound("there is no folder nowhere")


class OneClient:
    """Client that asks a model one question after another; `stats` are those of the last one."""

    def __init__(self, model: Any, client: bytes = b"one") -> None:
        self.model = model
        self.client = client
        self.stats: AnswerStats | None = None

    def answer(self, packet: Packet, query: str = "what?") -> str:
        question = ClientQuestion(self.client, packet, Question(query))
        text = ask_alone(self.model, question)
        self.stats = question.stats
        return text

    def score(self, packet: Packet, query: str) -> tuple[float, float]:
        (score,) = self.score_all(packet, query)
        return score

    def score_all(self, packet: Packet, *queries: str) -> tuple[tuple[float, float], ...]:
        question = ClientQuestion(self.client, packet, Question(queries[0], checks=queries))
        ask_alone(self.model, question)
        self.stats = question.stats
        return question.scores


def pixels_of(packet: Packet) -> np.ndarray:
    assert isinstance(packet, (TokenPacket, FramePacket))
    return packet.host_pixels if isinstance(packet, TokenPacket) else packet.image


class DeviceAnswerModel(FakeAnswerModel):
    """Accepts pixels on their device, and answers with the place that they came from."""

    takes_device_pixels = True

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        on_device = isinstance(packet, TokenPacket) and not isinstance(packet.pixels, np.ndarray)
        host = replace(packet, pixels=packet.host_pixels) if isinstance(packet, TokenPacket) else packet
        yield from super().answer(host, query)
        yield " there" if on_device else " here"
