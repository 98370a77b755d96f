"""Base of the allocators of one stream: its question, its epoch, and what answers about its frames teach."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from arr_coc.allocation.attending import Tensions
from arr_coc.allocation.glance import EVERY_S, GlanceOptions, GlancePolicy
from arr_coc.allocation.temporal import PriorMemory
from arr_coc.allocation.warping import MotionHistory, Warp, WholeTileSteps
from arr_coc.relevance.channels import TextureArray
from arr_coc.types import Feedback, FrameStamp, QueryEmbedding, TileVersions

Relevance = TypeVar("Relevance")
Placed = TypeVar("Placed")
PlacedIn = TypeVar("PlacedIn", contravariant=True)


class ChangeMarks(ABC, Generic[Relevance]):
    """Base of meters of change, which count from the versions that were marked last, weighted by relevance.

    `keep_vanished`: a tile weighs as much as it ever did since the mark, so that what has vanished from a plain wall
    counts as much as what has come.
    """

    def __init__(self, *, keep_vanished: bool = False) -> None:
        self._keep_vanished = keep_vanished
        self._marked: TileVersions | None = None
        self._now: Relevance | None = None
        self._weights: Relevance | None = None

    def mark(self, versions: TileVersions | None) -> None:
        """Counts from here: from the frame that was shown last."""
        self._marked, self._weights = versions, self._now

    @abstractmethod
    def _larger(self, before: Relevance, now: Relevance) -> Relevance:
        """The larger one of each tile; what is `now` where the grid is another."""

    def _weighed(self, relevance: Relevance) -> Relevance:
        """The weights of a frame's tiles, whose relevance is noted."""
        if not self._keep_vanished:
            return relevance
        self._now = relevance
        self._weights = relevance if self._weights is None else self._larger(self._weights, relevance)
        return self._weights


class Follower(Protocol[PlacedIn]):
    """Maps of tiles that follow what the tiles show."""

    def follow(self, warp: PlacedIn, /) -> None: ...


class EpochMemory(Protocol[PlacedIn]):
    """All that is remembered of one epoch. Warps lie where its maps do."""

    @property
    def epoch(self) -> int: ...
    @property
    def motions(self) -> MotionHistory: ...
    @property
    def steps(self) -> WholeTileSteps: ...
    @property
    def blend(self) -> Follower[PlacedIn]: ...
    @property
    def prior(self) -> PriorMemory[Any, Any]: ...
    @property
    def exploration(self) -> Follower[PlacedIn]: ...
    @property
    def selector(self) -> Follower[PlacedIn]: ...


def carry_along(
    memory: EpochMemory[Placed], frame_index: int, warp: Warp, placed: Callable[[Warp], Placed]
) -> Warp | None:
    """Carry along with the picture all that belongs to content, not to places; return the step of those maps that go in
    whole tiles, None where they stay."""
    memory.motions.add(frame_index, warp)
    memory.blend.follow(placed(warp))
    memory.prior.follow(warp)
    step = memory.steps.step(warp)
    if step is not None:
        whole = placed(step)
        memory.exploration.follow(whole)
        memory.selector.follow(whole)
    return step


class FrameDecision(Protocol):
    """Decision for the newest frame, so far as answers about it need it."""

    @property
    def stamp(self) -> FrameStamp: ...
    @property
    def relevance(self) -> torch.Tensor: ...
    @property
    def glance_tokens(self) -> int: ...


Memory = TypeVar("Memory", bound=EpochMemory[Any])
Frame = TypeVar("Frame", bound=FrameDecision)


class EpochAllocator(ABC, Generic[Memory, Frame, Relevance]):
    """Base of allocators of one stream. A new epoch (cut, seek, another size) forgets everything but the question."""

    _appearance: Relevance

    def __init__(
        self,
        tensions: Tensions,
        glance: GlanceOptions | None,
        since_answer: ChangeMarks[Relevance],
        since_look: ChangeMarks[Relevance],
    ) -> None:
        self._tensions = tensions
        self._glances = GlancePolicy(glance.every_s if glance else EVERY_S)
        self._query: QueryEmbedding | None = None
        self._state: Memory | None = None
        self._last: Frame | None = None
        self._versions: TileVersions | None = None
        self._marks = since_answer, since_look
        self._shown_texture: TextureArray | None = None

    @property
    def question(self) -> str:
        """The question, as text; empty before there is one."""
        return "" if self._query is None else self._query.text

    def set_query(self, query: QueryEmbedding) -> None:
        """Ask another question: what answers to the old one taught is forgotten. The same one again changes nothing, as
        when the model that was asked died and its successor gets the question."""
        if self._query is not None and _is_same(self._query, query):
            return
        self._query = query
        self._glances.reset()
        if self._state is not None:
            self._state.prior.reset()
        self._ask(query)

    def apply_feedback(self, feedback: Feedback) -> None:
        """Learn from an answer about an earlier frame of this epoch; feedback about another epoch is ignored."""
        self._learn(feedback, glance=False)

    def glance_due(self, media_ns: int) -> bool:
        """Return True if it is time to glance at the newest frame before it is answered about.

        That is so where frames have an overview, for a new question, in a new epoch, after a while, and where much came
        into view that nothing is known of; until `apply_glance`.
        """
        if self._state is None or self._last is None or not self._last.glance_tokens:
            return False
        return self._glances.due(media_ns, self._state.prior.unknown_share(self._appearance))

    def on_glance(self) -> None:
        """A glance at the newest frame is asked for: `apply_glance` will tell what it saw."""
        if self._state is not None and self._last is not None:
            self._state.prior.on_request(self._last.stamp.frame_index, self._appearance)

    def apply_glance(self, feedback: Feedback | None) -> None:
        """Learn from a glance at a frame of this epoch, as from an answer; None where none could be made. `reallocate`
        then chooses from the newest frame once more."""
        if feedback is None:
            self._glances.failed()
        elif self._state is not None and feedback.stamp.epoch == self._state.epoch:
            self._glances.done(feedback.stamp.media_ns)
            self._learn(feedback, glance=True)

    def mark_answered(self) -> None:
        """The newest allocation was given to a decoder: change counts from here, and what it showed counts as seen, if
        its regions were asked for."""
        if self._state is not None and self._last is not None:
            self._marks[0].mark(self._versions)
            self._mark_shown(self._state, self._last)
            self._state.prior.on_request(self._last.stamp.frame_index, self._appearance)

    def mark_looked(self) -> None:
        """The newest allocation was looked at for a standing question: `change_since_look` counts from here."""
        self._marks[1].mark(self._versions)

    @abstractmethod
    def _begin_epoch(self, epoch: int, frame_index: int) -> Memory:
        """The memory of a new epoch, which begins with this frame."""

    @abstractmethod
    def _ask(self, query: QueryEmbedding) -> None:
        """Another question: what is scored by the old one is scored anew."""

    @abstractmethod
    def _teach(self, memory: Memory, feedback: Feedback, warp: Warp, *, glance: bool) -> None:
        """Take feedback in, from whose frame `warp` leads to the newest one."""

    @abstractmethod
    def _mark_shown(self, memory: Memory, frame: Frame) -> None:
        """A decoder was shown this frame."""

    def _learn(self, feedback: Feedback, *, glance: bool) -> None:
        """Take feedback in, if it is about this epoch, and its frame is remembered."""
        if self._state is None or self._last is None or feedback.stamp.epoch != self._state.epoch:
            return
        rows, cols = self._last.relevance.shape
        warp = self._state.motions.since(feedback.stamp.frame_index, (rows, cols))
        if warp is not None:
            self._teach(self._state, feedback, warp, glance=glance)

    def _memory_of(self, epoch: int, frame_index: int) -> Memory:
        """The memory of a frame's epoch, which is a new one where the epoch is."""
        if self._state is None or self._state.epoch != epoch:
            self._state, self._last = self._begin_epoch(epoch, frame_index), None
            self._glances.reset()
        return self._state

    def _newest(self, stamp: FrameStamp) -> tuple[Memory, TextureArray]:
        """Memory and texture of the newest frame. Raises ValueError where `stamp` is another one's."""
        state, texture, frame = self._state, self._shown_texture, self._last
        if state is None or texture is None or frame is None or frame.stamp != stamp:
            raise ValueError("only the frame that was allocated last can be allocated once more")
        return state, texture


def _is_same(one: QueryEmbedding, other: QueryEmbedding) -> bool:
    """Whether two embeddings are of the same question by the same model."""
    return (one.text, one.model_id) == (other.text, other.model_id) and np.array_equal(one.tokens, other.tokens)
