"""`Stream`: a video that a program shows frame by frame, and asks about while it runs, with a visual memory.

It is what a run of `watch` does, in one thread and without its processes: every frame updates texture and relevance, an
answer appends what changed to the group of pictures in the model's cache, and idle time is used to read ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.group import GroupOptions
from arr_coc.allocation.packets import overview_packet
from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import OptionError
from arr_coc.qwen.generation import Generation, Timings
from arr_coc.qwen.preprocess import Picture, Rgb, to_frames
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.read_ahead import ReadAhead
from arr_coc.qwen.resize import pad_to_max_aspect
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import NS_PER_S, TILE_PX, FrameStamp, Steps, TokenPacket
from arr_coc.video.group_packets import GroupPackets
from arr_coc.video.picture_allocator import fit_with_planes, with_own_tiles
from arr_coc.video.texture_updater import TextureUpdater

MS_PER_S = 1000


@dataclass(slots=True)
class _OpenReading:
    """Packet that is read ahead, and the steps that are left of it."""

    packet: TokenPacket
    reading: ReadAhead
    steps: Steps[None]


class Stream:
    """Video with a question, for a program that has the frames.

    `update` takes a frame in, `answer` answers the question about the newest one, `ask` another question once, and
    `idle` lets the model read ahead between frames. The model keeps a group of pictures, so an answer costs the
    question and what changed since; `idle` makes that less. A cut begins anew. `query`: the standing question, which
    may be set. Not for several threads at once.
    """

    def __init__(
        self,
        qwen: QwenVL,
        session: AnswerSession,
        query: str,
        options: AllocatorOptions | None = None,
        schema: AnswerSchema | None = None,
    ) -> None:
        """Begin without a frame.

        Args:
            qwen: The model.
            session: Session with a slot of this stream alone, and `encode="sparse"`.
            query: The standing question.
            options: Options of the allocator; its `memory` are the limits of the group of pictures.
            schema: Form of the answers to it.

        Raises:
            BudgetError, StrategyError: Options that do not hold.
            OptionError: A session that encodes otherwise, or an empty question.
        """
        if session.options.encode != "sparse":
            raise OptionError(f"a stream is encoded with sparse, got encode={session.options.encode!r}")
        options = options or AllocatorOptions()
        options = replace(options, memory=options.memory or GroupOptions())
        self._qwen = qwen
        self._session = session
        self._schema = schema
        self._texture = TextureUpdater()
        self._allocator = StreamAllocator(options.for_model(wide=qwen.knows_wide), qwen.realiser)
        self._frame: FrameAllocation | None = None
        self._picture: Rgb | None = None
        self._packets = GroupPackets()
        self._appending: _OpenReading | None = None
        self._rebuilding: _OpenReading | None = None
        self._has_read_all = False
        self._frames = 0
        self.query = query

    @property
    def query(self) -> str:
        """The standing question."""
        return self._query

    @query.setter
    def query(self, query: str) -> None:
        if not query.strip():
            raise OptionError('a question is text that is not empty; give one such as "Say what happens."')
        self._query = query
        self._allocator.set_query(self._qwen.embed_query(query))

    def update(self, frame: Picture, time_s: float) -> None:
        """Take the next frame in; milliseconds of work, none of it the model's.

        Args:
            frame: File, Pillow image, array uint8 [H, W, 3] (RGB) or tensor.
            time_s: Its media time in seconds; not before the last one's.

        Raises:
            ShapeError: A picture that cannot be used.
        """
        (picture,) = (pad_to_max_aspect(picture) for picture in to_frames([frame]))
        self._picture = picture
        _, _, planes = fit_with_planes(self._qwen.preprocessing, picture)
        stamp = FrameStamp(self._frames, round(time_s * NS_PER_S), round(time_s * NS_PER_S))
        self._frames += 1
        self._has_read_all = False
        update = self._texture.process(planes, stamp)
        with self._texture.lease() as view:
            self._frame = self._allocator.observe(view, update.motion)

    def answer(self, on_text: Callable[[str], None] | None = None) -> Generation:
        """Return the answer to the standing question about the newest frame.

        Args:
            on_text: Called with each piece of the text.

        Raises:
            OptionError: There is no frame yet.
            ArrCocError: As `AnswerSession.answer`.
        """
        generation = self._answer(self._query, self._schema, on_text)
        feedback = self._session.last.feedback
        self._allocator.mark_answered()
        if feedback is not None:
            self._allocator.apply_feedback(feedback)
        return generation

    def ask(self, query: str, on_text: Callable[[str], None] | None = None) -> Generation:
        """Return the answer to another question about the newest frame; the standing question stays. Raises as
        `answer`."""
        standing_query = self._query
        self.query = query
        try:
            return self._answer(query, None, on_text)
        finally:
            self.query = standing_query

    def idle(self, budget_ms: float) -> bool:
        """Let the model read ahead for about `budget_ms`, and return whether more is left to read.

        It reads what changed since the last answer, then tiles that it was not shown in full resolution, the most
        relevant first, and writes the group of pictures anew once tokens of it show what is gone. An answer or a
        question in between gives up at most the packet that is being read.
        """
        until_s = time.perf_counter() + budget_ms / MS_PER_S
        while True:
            if self._appending is None and not self._has_read_all:
                self._has_read_all = not self._begin_reading()
            work = self._appending or self._rebuilding
            if work is None:
                return False
            if time.perf_counter() >= until_s:
                return True
            self._step(work)

    def close(self) -> None:
        """Give the texture's memory back."""
        self._texture.close()

    def _step(self, work: _OpenReading) -> None:
        """Read one step ahead; at the end of the packet, keep it."""
        if not work.reading.fits:
            self._end_reading(work)
            return
        try:
            next(work.steps)
        except StopIteration:
            work.reading.commit()
            self._packets.keep(work.packet)
            self._end_reading(work)

    def _begin_reading(self) -> bool:
        """Begin to read the next packet ahead, if there is one."""
        frame = self._frame
        group = self._allocator.group
        if frame is None or group is None or not self._qwen.decodes_plainly:
            return False
        with self._texture.lease() as view:
            packet = group.idle_packet(view, frame, self._packets.next_place, self._qwen.step_tokens)
        if packet is None:
            return False
        packet = self._with_tiles(packet)
        reading = self._session.slots[0].read_ahead(self._packets.up_to(packet))
        work = _OpenReading(packet, reading, reading.steps())
        if reading.is_key_frame:
            self._rebuilding = work
        else:
            self._appending = work
        return True

    def _end_reading(self, work: _OpenReading) -> None:
        if work is self._rebuilding:
            self._rebuilding = None
        else:
            self._appending = None
        self._has_read_all = False
        if (group := self._allocator.group) is not None:
            group.on_idle_end(self._packets.next_place, rebuilt=work.reading.is_key_frame)

    def _answer(self, query: str, schema: AnswerSchema | None, on_text: Callable[[str], None] | None) -> Generation:
        if self._frame is None:
            raise OptionError("there is no frame to answer about; give one to update() first")
        if self._appending is not None:
            self._end_reading(self._appending)
        started_s = time.perf_counter()
        self._glance_if_due(query)
        glanced_s = time.perf_counter()
        group = self._allocator.group
        frame = self._frame
        assert group is not None
        with self._texture.lease() as view:
            packet = group.packet(view, frame.with_regions(), self._packets.next_place)
        packet = self._with_tiles(packet)
        chosen_s = time.perf_counter()
        packets = self._packets.up_to(packet)
        self._packets.keep(packet)
        with closing(self._session.answer(packets, query, schema=schema)) as pieces:
            for piece in pieces:
                if on_text is not None:
                    on_text(piece)
        last = self._session.last
        return Generation(
            text=last.text,
            heatmap=frame.relevance.cpu().numpy().copy(),
            tokens_used=last.work.tokens_used,
            regions=last.regions,
            timings=Timings(
                allocate_ms=(chosen_s - glanced_s) * MS_PER_S,
                encode_ms=last.work.encode_ms,
                prefill_ms=last.work.prefill_ms,
                decode_ms=last.work.decode_ms,
                glance_ms=(glanced_s - started_s) * MS_PER_S,
            ),
            picture=self._picture,
            text_tokens=last.work.text_tokens,
            kept_bytes=last.work.kept_bytes,
            token_ids=last.token_ids,
            looped=last.work.looped,
        )

    def _glance_if_due(self, query: str) -> None:
        """Look at the newest frame with the question, if that is due, and allocate it once more."""
        frame = self._frame
        group = self._allocator.group
        assert frame is not None
        assert group is not None
        if not self._allocator.glance_due(frame.stamp.media_ns):
            return
        self._allocator.on_glance()
        with self._texture.lease() as view:
            packet = group.glance_packet(view, frame, self._packets.next_place)
            if packet is None:
                packet = overview_packet(view, frame.glance_tokens, frame.inputs.plan.overview)
        packets = self._packets.up_to(self._with_tiles(packet))
        self._allocator.apply_glance(self._session.glance(packets, query).feedback)
        with self._texture.lease() as view:
            self._frame = self._allocator.reallocate(view)

    def _with_tiles(self, packet: TokenPacket) -> TokenPacket:
        """Return a packet with the tiles of the model's own processor, if those are not 32 pixels."""
        if self._picture is None or self._qwen.preprocessing.tile_px == TILE_PX:
            return packet
        image, _ = self._qwen.preprocessing.fit(self._picture)
        return with_own_tiles(packet, image, self._qwen.preprocessing.tile_px)
