"""Cases that the allocator learns from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.channels import TextureArray, image_texture
from arr_coc.types import TILE_PX, TileGrid
from training.clips.fonts import Split
from training.clips.scenes import SIZES_PX, clip_rng, random_plan
from training.clips.truth import KINDS, Image, Kind, Sample, tile_shares
from training.questions.samples import ask

FIRST_TRAINED = 4_000_000
"""Clips from this number on are the allocator's own; the model's trainer stays far below."""

FIRST_CHOSEN_BY = 5_000_000
"""Clips from this number on, of the training split, tell which way of training is shipped."""

_SINGLE_SHARE = 0.6
_MOST_FRAMES = 4
_MOST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class AllocatorCase:
    """A question about one frame: its texture, and how much of each tile holds what is asked, float32 [gh, gw].

    `image` uint8 [H, W, 3] is kept only where the model itself is to look at it.
    """

    texture: TextureArray
    wanted: torch.Tensor
    question: str
    kind: Kind
    answer: str
    image: Image | None


@dataclass(frozen=True, slots=True)
class CaseBatch:
    """B cases of one grid: textures [B, …], `query` float32 [B, Lq, D] padded by zeros, `wanted` [B, gh, gw]."""

    texture: TextureArray
    query: torch.Tensor
    wanted: torch.Tensor


class Embedder:
    """Questions as the model's embedding table sees them, each embedded once."""

    def __init__(self, qwen: QwenVL) -> None:
        self._qwen = qwen
        self._known: dict[str, torch.Tensor] = {}

    def __call__(self, questions: Iterable[str]) -> torch.Tensor:
        """float32 [B, Lq, D], padded by zeros."""
        rows = [self._embedded(question) for question in questions]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def _embedded(self, question: str) -> torch.Tensor:
        if question not in self._known:
            self._known[question] = torch.from_numpy(self._qwen.embed_query(question).tokens.copy())
        return self._known[question]


def random_samples(split: Split, first: int, clips: int, questions: int = 4) -> Iterator[Sample]:
    """Up to `questions` samples of different kinds about each of the split's clips from number `first` on.

    Clips have one to four frames. A clip that gives no question is not drawn.
    """
    for number in range(first, first + clips):
        rng = clip_rng(split, number)
        frames = 1 if rng.random() < _SINGLE_SHARE else int(rng.integers(2, _MOST_FRAMES + 1))
        plan = random_plan(rng, SIZES_PX[int(rng.integers(len(SIZES_PX)))], frames, split)
        facts = plan.facts()
        asked = (ask(rng, facts, KINDS[index], split) for index in rng.permutation(len(KINDS)))
        samples = [sample for sample in asked if sample is not None and any(sample.boxes)][:questions]
        if samples:
            clip = plan.draw()
            yield from (replace(sample, clip=clip) for sample in samples)


def cases_of(samples: Iterable[Sample], with_images: bool = False) -> Iterator[AllocatorCase]:
    """Cases of all frames of every sample that show something asked about, but not nearly everywhere."""
    drawn = None
    textures: dict[int, TextureArray] = {}
    for sample in samples:
        if sample.clip is not drawn:
            drawn, textures = sample.clip, {}
        for frame, image in enumerate(sample.clip.frames):
            shape = TileGrid.of(*image.shape[:2]).shape
            wanted = tile_shares(sample.boxes[frame], shape, (TILE_PX, TILE_PX)).astype(np.float32)
            if not wanted.any() or (wanted > 0).mean() > _MOST_SHARE:
                continue
            if frame not in textures:
                texture = image_texture(torch.from_numpy(image).permute(2, 0, 1)[None])
                textures[frame] = TextureArray(texture.channels[0], texture.entropy[0])
            yield AllocatorCase(
                textures[frame],
                torch.from_numpy(wanted),
                sample.question,
                sample.kind,
                sample.answer,
                image if with_images else None,
            )


class Batches:
    """Endless random batches of cases, each of one grid; the larger the grid, the fewer cases."""

    def __init__(
        self, cases: Iterable[AllocatorCase], embed: Embedder, rng: np.random.Generator, tiles: int = 4096
    ) -> None:
        self._by_grid: dict[tuple[int, ...], list[AllocatorCase]] = defaultdict(list)
        for case in cases:
            self._by_grid[tuple(case.wanted.shape)].append(case)
        self._grids = list(self._by_grid)
        counts = np.array([len(self._by_grid[grid]) for grid in self._grids], float)
        self._chances = counts / counts.sum()
        self._embed, self._rng, self._tiles = embed, rng, tiles

    def next(self) -> CaseBatch:
        return self.collate(self.pick())

    def pick(self) -> list[AllocatorCase]:
        """Cases of one grid, drawn with replacement."""
        grid = self._grids[int(self._rng.choice(len(self._grids), p=self._chances))]
        pool = self._by_grid[grid]
        count = max(4, min(24, self._tiles // (grid[0] * grid[1])))
        return [pool[int(index)] for index in self._rng.integers(len(pool), size=count)]

    def collate(self, cases: list[AllocatorCase]) -> CaseBatch:
        return CaseBatch(
            TextureArray(
                torch.stack([case.texture.channels for case in cases]),
                torch.stack([case.texture.entropy for case in cases]),
            ),
            self._embed(case.question for case in cases),
            torch.stack([case.wanted for case in cases]),
        )
