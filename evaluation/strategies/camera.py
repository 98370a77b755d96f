"""`StreamCamera`: a stream as a run shows it to a model, frame after frame, without the run's threads and processes.

It drives what a run drives: texture, allocator, the group of pictures, and the session that holds it in its cache.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from arr_coc.allocation import packets
from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.allocation.group import GroupOptions
from arr_coc.allocation.zones import ZoneOptions
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.resize import resize_image
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.slot import AnswerResult
from arr_coc.texture.polygons import Polygon
from arr_coc.texture.store.base import TextureView
from arr_coc.types import NS_PER_S, TILE_PX, FramePlanes, FrameStamp, QueryEmbedding, TileGrid, TokenPacket
from arr_coc.video.group_packets import GroupPackets
from arr_coc.video.texture_updater import TextureUpdater
from evaluation.errors import ChoiceError
from evaluation.strategies.base import Budget

MAX_TOKENS = 48


@dataclass(frozen=True, slots=True)
class CameraOptions:
    """Options of a stream. `memory`: limits of the group of pictures; None: each answer is about a snapshot. `idle`:
    packets that the model may read ahead at each frame. `glance_every_s`: seconds from one glance to the next; None
    for no glances. `zone`: the part of the picture that questions are about; None for all of it. `watch`: a yes/no
    question that is checked beside the answers. `max_tokens` of an answer. `explore`: as in `AllocatorOptions`.
    The others are a run's defaults."""

    budget: Budget
    memory: GroupOptions | None = None
    idle: int = 1
    glance_every_s: float | None = None
    zone: Polygon | None = None
    watch: str = ""
    max_tokens: int = MAX_TOKENS
    explore: float = AllocatorOptions().explore


class StreamCamera:
    """One stream: `show` each frame, then `answer` or `check` about it if one is due, then `idle` until the next."""

    def __init__(self, qwen: QwenVL, options: CameraOptions) -> None:
        if qwen.preprocessing.tile_px != TILE_PX:
            raise ChoiceError(f"streams are evaluated with models of {TILE_PX}-pixel tiles; name another --model")
        self._qwen = qwen
        self._options = options
        self._texture = TextureUpdater()
        self._session = AnswerSession(qwen, AnswerOptions("sparse", Decoding(options.max_tokens)))
        self._allocator: StreamAllocator | None = None
        self._packets = GroupPackets()
        self._frame: FrameAllocation | None = None
        self._frames = 0
        self._grid: TileGrid | None = None

    @property
    def last(self) -> AnswerResult:
        """Record of the last answer."""
        return self._session.last

    @property
    def grid(self) -> TileGrid:
        """Grid of the newest frame."""
        assert self._grid is not None
        return self._grid

    def ask(self, question: str) -> None:
        """Set the question of the next answers and frames."""
        if self._allocator is not None:
            self._allocator.set_query(*self._embeddings(question))
        self._question = question

    def show(self, frame: Rgb, at_s: float) -> None:
        """Take a frame in, uint8 RGB [H, W, 3], at its media time."""
        _, grid = self._qwen.preprocessing.fit(frame)
        self._grid = grid
        if self._allocator is None:
            self._allocator = self._make_allocator(grid.tiles)
            self._allocator.set_query(*self._embeddings(self._question))
        at_ns = round(at_s * NS_PER_S)
        planes = FramePlanes("rgb", (resize_image(frame, grid.height_px, grid.width_px),))
        update = self._texture.process(planes, FrameStamp(self._frames, at_ns, at_ns))
        self._frames += 1
        with self._lease() as view:
            self._frame = self._allocator.observe(view, update.motion)

    def idle(self, packets: int | None = None) -> None:
        """Let the model read up to so many packets ahead, by default those of one frame."""
        allocator, frame = self._shown()
        group = allocator.group
        for _ in range(self._options.idle if packets is None else packets):
            if group is None or not self._qwen.decodes_plainly:
                return
            with self._lease() as view:
                packet = group.idle_packet(view, frame, self._packets.next_place, self._qwen.step_tokens)
            if packet is None:
                return
            reading = self._session.slots[0].read_ahead(self._packets.up_to(packet))
            for _ in reading.steps():
                pass
            reading.commit()
            self._packets.keep(packet)
            group.on_idle_end(self._packets.next_place)

    def answer(self) -> str:
        """Return the answer to the question about the newest frame."""
        self._glance_if_due()
        packet = self._answer_packet()
        pieces = self._session.answer(self._packets.up_to(packet), self._question)
        self._packets.keep(packet)
        text = "".join(pieces)
        allocator, _ = self._shown()
        allocator.mark_answered()
        if (feedback := self._session.last.feedback) is not None:
            allocator.apply_feedback(feedback)
        return text

    def check(self) -> float:
        """Return the probability of yes of the watch's question about the newest frame."""
        packet = self._answer_packet()
        score = self._session.score_yes_no(self._packets.up_to(packet), self._options.watch)
        self._packets.keep(packet)
        allocator, _ = self._shown()
        allocator.mark_looked()
        if (feedback := self._session.last.feedback) is not None:
            allocator.apply_feedback(feedback)
        return score.yes

    def close(self) -> None:
        """Give the texture's memory back."""
        self._texture.close()

    def _answer_packet(self) -> TokenPacket:
        """Return the packet of an answer or a check about the newest frame: what the group of pictures lacks, or a
        snapshot."""
        allocator, frame = self._shown()
        self._frame = frame = frame.with_regions()
        with self._lease() as view:
            if allocator.group is None:
                return packets.packet_from(view, frame)
            return allocator.group.packet(view, frame, self._packets.next_place)

    def _glance_if_due(self) -> None:
        """Look at the newest frame with the question, if that is due, and allocate it once more."""
        allocator, frame = self._shown()
        if not allocator.glance_due(frame.stamp.media_ns):
            return
        allocator.on_glance()
        with self._lease() as view:
            group = allocator.group
            packet = None if group is None else group.glance_packet(view, frame, self._packets.next_place)
            if packet is None:
                packet = packets.overview_packet(view, frame.glance_tokens, frame.inputs.plan.overview)
        allocator.apply_glance(self._session.glance(self._packets.up_to(packet), self._question).feedback)
        with self._lease() as view:
            self._frame = allocator.reallocate(view)

    def _make_allocator(self, tiles: int) -> StreamAllocator:
        options, qwen = self._options, self._qwen
        every_s = options.glance_every_s
        allocator_options = AllocatorOptions(
            budget=options.budget.of(tiles),
            glance=None if every_s is None else GlanceOptions(every_s=every_s),
            memory=options.memory,
            explore=options.explore,
            zones=None if options.zone is None else ZoneOptions(focus=(options.zone,)),
        )
        for_model = allocator_options.for_model(wide=qwen.knows_wide)
        return StreamAllocator(for_model, qwen.realiser)

    def _embeddings(self, question: str) -> list[QueryEmbedding]:
        questions = [question, *([self._options.watch] if self._options.watch else [])]
        return [self._qwen.embed_query(text) for text in questions]

    def _shown(self) -> tuple[StreamAllocator, FrameAllocation]:
        """Return the allocator and the newest frame."""
        assert self._allocator is not None
        assert self._frame is not None
        return self._allocator, self._frame

    def _lease(self) -> AbstractContextManager[TextureView]:
        return self._texture.lease()
