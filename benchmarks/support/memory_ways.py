"""Ways to answer about a camera: a snapshot each time, and a visual memory that reads ahead between answers or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.group import GroupOptions
from arr_coc.allocation.packets import overview_packet, packet_from
from arr_coc.qwen.generation import MAX_TOKENS
from arr_coc.qwen.glancing import resolve_glance
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.resize import resize_image
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.slot import GlanceResult
from arr_coc.types import NS_PER_MS, NS_PER_S, TILE_PX, FramePlanes, FrameStamp, TokenPacket
from arr_coc.video.picture_allocator import with_own_tiles
from arr_coc.video.stream import Stream
from arr_coc.video.texture_updater import TextureUpdater
from stream.answer.idle_work import PIECE_NS, SAVED_NS

QUERY, OTHER_QUERY = "Say what happens.", "Which colours are there?"
MS_PER_S = 1000
PIECE_MS, SAVED_MS = PIECE_NS / NS_PER_MS, SAVED_NS / NS_PER_MS


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """Milliseconds and tokens of one answer.

    `first_token_ms` counts from the question: choosing tokens, a glance if one is due, encoding, and the prompt.
    `encode_ms` and `prefill_ms` include those of glances. `prefilled_tokens` were computed, and the model was shown
    `held_tokens` visual ones. `idle_ms` was spent on reading ahead since the answer before.
    """

    first_token_ms: float
    encode_ms: float
    prefill_ms: float
    prefilled_tokens: int
    appended_tokens: int
    held_tokens: int
    idle_ms: float = 0.0

    @property
    def other_ms(self) -> float:
        """What is neither encoding nor the prompt."""
        return max(0.0, self.first_token_ms - self.encode_ms - self.prefill_ms)


class MeasuredSession(AnswerSession):
    """Session that notes when an answer began, and its glances."""

    def __init__(self, qwen: QwenVL, options: AnswerOptions) -> None:
        super().__init__(qwen, options)
        self.began_s = 0.0
        self.glances: list[GlanceResult] = []

    def answer(self, *arguments: Any, **options: Any) -> Generator[str, None, None]:
        """As `AnswerSession.answer`."""
        self.began_s = time.perf_counter()
        return super().answer(*arguments, **options)

    def glance(self, *arguments: Any, **options: Any) -> GlanceResult:
        """As `AnswerSession.glance`."""
        result = super().glance(*arguments, **options)
        self.glances.append(result)
        return result

    def measure(self, ask: Callable[[], object], idle_ms: float) -> AnswerFigures:
        """Return the figures of the answer that `ask` asks for."""
        self.glances.clear()
        asked_s = time.perf_counter()
        ask()
        last = self.last
        return AnswerFigures(
            (self.began_s - asked_s) * MS_PER_S + last.first_token_ms,
            last.work.encode_ms + sum(glance.work.encode_ms for glance in self.glances),
            last.work.prefill_ms + sum(glance.work.prefill_ms for glance in self.glances),
            last.work.prefilled_tokens + sum(glance.work.prefilled_tokens for glance in self.glances),
            last.work.appended_tokens,
            last.work.tokens_used,
            idle_ms,
        )


class CameraWay(Protocol):
    """Way to answer about a camera, with its own texture, allocator and session."""

    def update(self, picture: Rgb, at_s: float) -> None:
        """Take a frame in."""
        ...

    def rest(self, time_s: float) -> None:
        """Use the time until the next frame."""
        ...

    def answer(self, query: str | None = None) -> AnswerFigures:
        """Answer the standing question, or another one once."""
        ...


def make_session(qwen: QwenVL, max_tokens: int) -> tuple[MeasuredSession, AllocatorOptions]:
    """Return a session and the allocator's options as `ARRCOCQwen.stream` makes them by default."""
    session = MeasuredSession(qwen, AnswerOptions("sparse", Decoding(max_tokens)))
    return session, AllocatorOptions(glance=resolve_glance(session, "auto", "auto"))


class Snapshots:
    """No memory: each answer is about chosen tokens of the newest frame, as `--no-memory` has it. It does what `Stream`
    does but for the group of pictures."""

    def __init__(self, qwen: QwenVL, max_tokens: int = MAX_TOKENS) -> None:
        self.session, options = make_session(qwen, max_tokens)
        self._qwen = qwen
        self._texture = TextureUpdater()
        options = options.for_model(wide=qwen.knows_wide)
        self._allocator = StreamAllocator(options, qwen.realiser)
        self._allocator.set_query(qwen.embed_query(QUERY))
        self._frame: FrameAllocation | None = None
        self._frames = 0

    def update(self, picture: Rgb, at_s: float) -> None:
        """Take a frame in."""
        self._picture = picture
        planes = planes_of(self._qwen, picture)
        at_ns = round(at_s * NS_PER_S)
        update = self._texture.process(planes, FrameStamp(self._frames, at_ns, at_ns))
        self._frames += 1
        with self._texture.lease() as view:
            self._frame = self._allocator.observe(view, update.motion)

    def rest(self, time_s: float) -> None:
        """Do nothing."""

    def answer(self, query: str | None = None) -> AnswerFigures:
        """Answer the standing question, or another one once."""
        figures = self.session.measure(lambda: self._answer(query), 0.0)
        if query is None:
            self._allocator.mark_answered()
            if (feedback := self.session.last.feedback) is not None:
                self._allocator.apply_feedback(feedback)
        else:
            self._allocator.set_query(self._qwen.embed_query(QUERY))
        return figures

    def _answer(self, query: str | None) -> None:
        if query is not None:
            self._allocator.set_query(self._qwen.embed_query(query))
        frame = self._frame
        assert frame is not None
        if self._allocator.glance_due(frame.stamp.media_ns):
            self._allocator.on_glance()
            with self._texture.lease() as view:
                overview = overview_packet(view, frame.glance_tokens, frame.inputs.plan.overview)
            self._allocator.apply_glance(self.session.glance(self._with_tiles(overview), query or QUERY).feedback)
            with self._texture.lease() as view:
                frame = self._frame = self._allocator.reallocate(view)
        with self._texture.lease() as view:
            packet = self._with_tiles(packet_from(view, frame.with_regions()))
        for _ in self.session.answer(packet, query or QUERY):
            pass

    def _with_tiles(self, packet: TokenPacket) -> TokenPacket:
        preprocessing = self._qwen.preprocessing
        if preprocessing.tile_px == TILE_PX:  # as in a run, which has no resized picture
            return packet
        return with_own_tiles(packet, preprocessing.fit(self._picture)[0], preprocessing.tile_px)


class Memory:
    """`Stream`, which reads ahead for `share` of the time between frames; `patch` as in `GroupOptions`.

    `speed`: of a model with fewer blocks, its time for a prompt by that of the whole model. What it may use is so much
    less, so that it reads as many tokens ahead as the whole model would.
    """

    def __init__(
        self, qwen: QwenVL, share: float, max_tokens: int = MAX_TOKENS, speed: float = 1.0, *, patch: bool = False
    ) -> None:
        self.session, options = make_session(qwen, max_tokens)
        self.stream = Stream(qwen, self.session, QUERY, replace(options, memory=GroupOptions(patch=patch)))
        self._share = share
        self._speed = speed
        self._saved_ms = 0.0
        self._idle_ms = 0.0

    def update(self, picture: Rgb, at_s: float) -> None:
        """Take a frame in."""
        self.stream.update(picture, at_s)

    def rest(self, time_s: float) -> None:
        """Read ahead piece by piece, as an answer server does: for a share of the time, of which some may be saved."""
        if self._share <= 0:
            return
        earned_ms = self._share * time_s * MS_PER_S
        self._saved_ms = min(self._share * SAVED_MS, self._saved_ms + earned_ms)
        while self._saved_ms > 0:
            began_s = time.perf_counter()
            has_more = self.stream.idle(PIECE_MS * self._speed)
            took_ms = (time.perf_counter() - began_s) * MS_PER_S / self._speed
            self._saved_ms -= took_ms
            self._idle_ms += took_ms
            if not has_more:
                break

    def answer(self, query: str | None = None) -> AnswerFigures:
        """Answer the standing question, or another one once."""
        idle_ms, self._idle_ms = self._idle_ms, 0.0
        ask = self.stream.answer if query is None else lambda: self.stream.ask(query)
        return self.session.measure(ask, idle_ms)


def planes_of(qwen: QwenVL, picture: Rgb) -> FramePlanes:
    """Return a picture as the texture takes it."""
    _, grid = qwen.preprocessing.fit(picture)
    return FramePlanes("rgb", (resize_image(picture, grid.height_px, grid.width_px),))
