"""Cases that an allocator learns from: `AllocatorCase`, batches of them, embedded questions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.channels import TextureArray, image_texture

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels."""


def tile_shares(boxes: Iterable[Box], shape: tuple[int, int], tile_px: tuple[float, float]) -> npt.NDArray[np.float64]:
    """Return the share of every tile that lies in a box: of several boxes the largest.

    Args:
        boxes: Boxes in pixels.
        shape: (rows, cols) of the grid.
        tile_px: A tile's (height, width) in the boxes' pixels.

    Returns:
        float64 [rows, cols] in [0, 1].
    """
    rows, cols = shape
    high_px, wide_px = tile_px
    shares = np.zeros(shape)
    for left, top, right, bottom in boxes:
        down = _overlap(top / high_px, bottom / high_px, rows)
        across = _overlap(left / wide_px, right / wide_px, cols)
        shares = np.maximum(shares, np.outer(down, across))
    return shares


def _overlap(first: float, last: float, count: int) -> npt.NDArray[np.float64]:
    """Return the part of each of `count` unit intervals that lies between `first` and `last`."""
    edges = np.arange(count)
    return np.clip(np.minimum(edges + 1, last) - np.maximum(edges, first), 0, 1)


def texture_of(image: npt.NDArray[np.uint8], channels: str = "core13") -> TextureArray:
    """Return the texture of one picture uint8 [H, W, 3], without a batch dimension. Raises ProfileError."""
    texture = image_texture(torch.from_numpy(image.copy()).permute(2, 0, 1)[None], channels)
    return TextureArray(texture.channels[0], texture.entropy[0])


@dataclass(frozen=True, slots=True)
class AllocatorCase:
    """A question about one frame: its texture, and the `target` relevance of each tile, float32 [gh, gw] in [0, 1].

    `kind` names the kind of question, for figures by kind. `answer`, and `image` uint8 [H, W, 3], are kept only if the
    model itself is to look at the picture, and `prior` float32 [3, gh, gw] if answers or a glance gave feedback.
    """

    texture: TextureArray
    target: torch.Tensor
    question: str
    kind: str = ""
    answer: str = ""
    image: npt.NDArray[np.uint8] | None = None
    prior: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class CaseBatch:
    """B cases of one grid: textures [B, …], `query` float32 [B, Lq, D] padded by zeros, `target` [B, gh, gw], and
    `prior` [B, 3, gh, gw] if any case has one, with trust 0 for the others."""

    texture: TextureArray
    query: torch.Tensor
    target: torch.Tensor
    prior: torch.Tensor | None = None

    def to(self, device: torch.device) -> CaseBatch:
        """Return the batch on a device."""
        texture = TextureArray(self.texture.channels.to(device), self.texture.entropy.to(device))
        prior = None if self.prior is None else self.prior.to(device)
        return CaseBatch(texture, self.query.to(device), self.target.to(device), prior)


class Embedder:
    """Questions as the model's embedding table sees them, each embedded once."""

    def __init__(self, qwen: QwenVL) -> None:
        self._qwen = qwen
        self._embeddings: dict[str, torch.Tensor] = {}

    def __call__(self, questions: Iterable[str]) -> torch.Tensor:
        """float32 [B, Lq, D], padded by zeros."""
        rows = []
        for question in questions:
            if question not in self._embeddings:
                self._embeddings[question] = torch.from_numpy(self._qwen.embed_query(question).tokens.copy())
            rows.append(self._embeddings[question])
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Batches:
    """Endless random batches of cases, each of one grid; the larger the grid, the fewer cases."""

    def __init__(
        self, cases: Iterable[AllocatorCase], embed: Embedder, rng: np.random.Generator, tiles: int = 4096
    ) -> None:
        self._by_grid: dict[tuple[int, ...], list[AllocatorCase]] = defaultdict(list)
        for case in cases:
            self._by_grid[tuple(case.target.shape)].append(case)
        self._grids = list(self._by_grid)
        counts = np.array([len(self._by_grid[grid]) for grid in self._grids], float)
        self._chances = counts / counts.sum()
        self._embed = embed
        self._rng = rng
        self._tiles = tiles

    def next(self) -> CaseBatch:
        """Return a fresh batch."""
        return self.collate(self.pick())

    def pick(self) -> list[AllocatorCase]:
        """Cases of one grid, drawn with replacement."""
        grid = self._grids[int(self._rng.choice(len(self._grids), p=self._chances))]
        pool = self._by_grid[grid]
        count = max(4, min(24, self._tiles // (grid[0] * grid[1])))
        return [pool[int(index)] for index in self._rng.integers(len(pool), size=count)]

    def collate(self, cases: list[AllocatorCase]) -> CaseBatch:
        """Return the cases, all of one grid, as a batch."""
        return CaseBatch(
            TextureArray(
                torch.stack([case.texture.channels for case in cases]),
                torch.stack([case.texture.entropy for case in cases]),
            ),
            self._embed(case.question for case in cases),
            torch.stack([case.target for case in cases]),
            _priors(cases),
        )


def _priors(cases: list[AllocatorCase]) -> torch.Tensor | None:
    if all(case.prior is None for case in cases):
        return None
    unknown = torch.zeros(3, *cases[0].target.shape)
    return torch.stack([unknown if case.prior is None else case.prior for case in cases])
