"""The frames of one stream that a model may be shown: the newest ones, and which of them a question picks."""

from __future__ import annotations

import math
from collections import deque

import torch
from torch.nn import functional as F

from arr_coc.qwen.kept_frame import KeptFrame
from arr_coc.qwen.options import WindowOptions
from arr_coc.qwen.shown_frame import Ids


class FrameWindow:
    """What is in it depends on the frames that entered last, never on what was asked or shown before."""

    def __init__(self, options: WindowOptions | None = None) -> None:
        self.options = options or WindowOptions()
        self._frames: deque[KeptFrame] = deque(maxlen=self.options.capacity)

    @property
    def frames(self) -> tuple[KeptFrame, ...]:
        """All that are kept, in the order in which they entered."""
        return tuple(self._frames)

    @property
    def newest(self) -> KeptFrame | None:
        return self._frames[-1] if self._frames else None

    @property
    def bytes(self) -> int:
        """What the frames keep in memory; the cache that a question is asked of holds those shown once more."""
        return sum(frame.bytes for frame in self._frames)

    def clear(self) -> None:
        """Forgets all frames."""
        self._frames.clear()

    def enter(self, frame: KeptFrame) -> None:
        """Takes in the newest frame; the oldest leaves where there is no room.

        The same frame in another form is replaced; what may not stand beside it is forgotten, as by `begin`.
        """
        self.begin(frame.wrapping.head, frame.stamp.epoch)
        if self.newest is not None and _same_frame(self.newest, frame):
            self._frames.pop()
        self._frames.append(frame)

    def begin(self, head: Ids, epoch: int | None = None) -> None:
        """Forgets frames that were read after another beginning of the prompt than `head`. Where a frame of `epoch`
        comes, also those from before a cut, unless they are to be kept."""
        any_epoch = epoch is None or self.options.on_cut == "keep"
        staying = [
            frame for frame in self._frames if frame.wrapping.head == head and (any_epoch or frame.stamp.epoch == epoch)
        ]
        self._frames = deque(staying, self.options.capacity)

    def pick(self, query: torch.Tensor, room_steps: float = math.inf) -> list[KeptFrame]:
        """The frames to show, in the order in which they entered: the newest, and those that suit the question best.

        `query` float32 [D]: the question's embeddings, pooled. Of frames that suit equally well, newer ones are taken.
        Beyond the newest, none is shown that would need more tokens or positions than `room_steps` together.
        """
        if not self._frames:
            return []
        *older, newest = self._frames
        crowded = len(self._frames) > self.options.frames
        scores = [suitability(frame, query) if crowded else 0.0 for frame in older]
        room_steps -= newest.steps
        picked: list[int] = []
        for index in sorted(range(len(older)), key=lambda index: (scores[index], index), reverse=True):
            if len(picked) + 1 < self.options.frames and older[index].steps <= room_steps:
                picked.append(index)
                room_steps -= older[index].steps
        return [*(older[index] for index in sorted(picked)), newest]


def suitability(frame: KeptFrame, query: torch.Tensor) -> float:
    """How well a frame suits a question, in [0, 1]: mean over its tokens of the allocation's relevance times the cosine
    of encoder embedding and question `query` [D], moved from [-1, 1] to [0, 1]."""
    embeds = frame.embeds.float()
    cosine = F.cosine_similarity(embeds, query.to(embeds.device)[None], dim=-1).cpu()
    return float((frame.relevance * (1 + cosine) / 2).mean())


def _same_frame(one: KeptFrame, other: KeptFrame) -> bool:
    return (one.stamp.epoch, one.stamp.frame_index) == (other.stamp.epoch, other.stamp.frame_index)
