"""A prompt on its way to an answer: what is cached of it, what remains to be prefilled, and what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc.qwen.cache import Mark, PrefixCache
from arr_coc.qwen.decode import PromptPart
from arr_coc.qwen.kept_frame import KeptFrame, lay
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.shown_frame import Ids
from arr_coc.types import FrameStamp


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of which `part` is not prefilled yet. Once it is, `marks` hold, and `prefilled_tokens` were in all.

    The frames of `stamps` are shown, their visual tokens at `places` of the cache; `embeds` [K, D] and `regions`
    int64 [K, 3] are the last one's.
    """

    part: PromptPart
    marks: list[Mark[Any]]
    prefilled_tokens: int
    stamps: tuple[FrameStamp, ...]
    places: list[slice]
    embeds: torch.Tensor
    regions: torch.Tensor

    @property
    def tokens_used(self) -> int:
        """Visual tokens of all frames."""
        return sum(place.stop - place.start for place in self.places)


def prompt_in_slots(
    qwen: QwenVL, cache: PrefixCache[Any], head: Ids, shown: Sequence[KeptFrame], question: Sequence[int]
) -> Prompt:
    """[system] [frames…] [question], for a cache that begins with `head`: frames that do not stand where they stood are
    rotated into their slots, and the question's tokens remain."""
    kept = cache.rewind([head, *shown])
    lay(qwen, cache, shown[kept - 1 :])
    part = PromptPart(qwen, len(cache), cache.position)
    part.text(list(question))
    places = [
        slice(before.tokens + frame.visual.start, before.tokens + frame.visual.stop)
        for before, frame in zip(cache.marks, shown, strict=False)
    ]
    return Prompt(
        part=part,
        marks=[],
        prefilled_tokens=part.tokens - len(cache),
        stamps=tuple(frame.stamp for frame in shown),
        places=places,
        embeds=shown[-1].embeds,
        regions=shown[-1].regions,
    )
