"""The stages of a run one after another in one thread: texture, allocation, triggers, answers, and what these teach.

For benchmarks that must know which question goes with which frame; the pipeline's own threads and processes are
measured by others.
"""

from __future__ import annotations

from dataclasses import dataclass

from arr_coc.allocator import AllocatorOptions, StreamAllocator
from arr_coc.packets import packet_from
from arr_coc.types import FramePlanes, FrameStamp, TokenPacket
from arr_coc.updater import TextureOptions, TextureUpdater
from arr_coc.weights import unpack_realiser
from stream.answer.model import Speaker
from stream.answer.triggers import Trigger, TriggerRules, Triggers


@dataclass(frozen=True, slots=True)
class Told:
    """One answer, and why it was given. `kept_bytes` is what the model keeps in memory since."""

    text: str
    trigger: Trigger
    tokens: int
    kept_bytes: int


class Chain:
    """One stream and one model. With `cuts` off the whole stream is one epoch."""

    def __init__(self, speaker: Speaker, budget: int, every_ns: int, *, cuts: bool = True) -> None:
        options = AllocatorOptions(budget=budget, levels=speaker.knows_levels)
        self._speaker = speaker
        self._texture = TextureUpdater(TextureOptions(cuts=cuts))
        self._allocator = StreamAllocator(options, unpack_realiser(speaker.allocator, speaker.model_id))
        self._triggers = Triggers(TriggerRules(every_ns=every_ns))
        self._query = ""
        self.cuts = 0
        speaker.attend(b"")

    def close(self) -> None:
        self._texture.close()

    def step(self, planes: FramePlanes, stamp: FrameStamp, query: str) -> Told | None:
        """Shows the next frame, while `query` is what is asked; the answer, where one was due."""
        update = self._texture.process(planes, stamp)
        cut = update.epoch_reason == "cut"
        self.cuts += cut
        if query != self._query:
            self._query = query
            self._allocator.set_query(self._speaker.embed(query))
            self._triggers.ask()
        with self._texture.lease() as view:
            frame = self._allocator.allocate(view, update.shift)
            if self._triggers.observe(stamp.media_ns, change=frame.change_since, cut=cut) is None:
                return None
            packet = packet_from(view, frame)
        return self._answer(packet)

    def _answer(self, packet: TokenPacket) -> Told:
        trigger = self._triggers.fire()
        self._allocator.mark_answered()
        text = "".join(self._speaker.answer(packet, self._query, lambda: False))
        spoken = self._speaker.last
        if spoken.feedback is not None:
            self._allocator.apply_feedback(spoken.feedback)
        return Told(text, trigger, spoken.tokens_used, spoken.kept_bytes)
