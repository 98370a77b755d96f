"""`FrameHistory`: what the channels of a frame need of the past, and `with_history`, which fills them in.

A texture array is a function of the texture alone. What came before enters here, as an explicit argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from arr_coc.errors import ShapeError
from arr_coc.relevance.channels import TextureArray
from arr_coc.relevance.profiles import FULL
from arr_coc.types import EMBEDDING_COMPONENTS

ECCENTRICITY = 5
MOTION = 10
QUESTION = 33
EMBEDDING = slice(17, 17 + EMBEDDING_COMPONENTS)
PREVIOUS = slice(34, 37)
ATTENTION = slice(37, 40)
HISTORY = (ECCENTRICITY, MOTION, *range(17, FULL))
"""Channels of `full40` that are 0 while nothing earlier is known."""

LONG_S = 5.0
"""Time without a change that counts as 1."""

Map = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FrameHistory:
    """The past of one frame's tiles, carried along with motion to their present places; None if nothing is known.

    `motion` float32 [3, gh, gw]: pixels down and right since the frame before, and confidence in [0, 1].
    `relevance` float32 [2, gh, gw]: that of the frame before, and how far it is known, in [0, 1].
    `unchanged_s` float32 [gh, gw]: media time since each tile changed. `attention` float32 [3, gh, gw]: that of the
    last answer, its mean over 5 s, and how far to trust it, in [0, 1]. `embedding` float32 [16, gh, gw]: components of
    the model's embedding of each tile in [−1, 1], 0 if it was not shown; `question` float32 [16]: the question's.
    """

    motion: Map | None = None
    relevance: Map | None = None
    unchanged_s: Map | None = None
    attention: Map | None = None
    embedding: Map | None = None
    question: Map | None = None

    def channels(self, shape: tuple[int, int]) -> Map:
        """Return the forty channels of a grid, as far as they are of the past: float32 [40, gh, gw], all others 0.

        Raises ShapeError for maps of another grid.
        """
        channels = np.zeros((FULL, *shape), np.float32)
        for name in ("motion", "relevance", "unchanged_s", "attention", "embedding"):
            values = getattr(self, name)
            if values is not None and values.shape[-2:] != shape:
                raise ShapeError(f"the history's {name} is of a grid of {values.shape[-2:]}, the texture's is {shape}")
        if self.motion is not None:
            speed = np.hypot(self.motion[0], self.motion[1]) / 32.0  # motion of a frame that counts as 1: a tile
            channels[MOTION] = np.minimum(speed, 1) * self.motion[2]
        if self.relevance is not None:
            channels[PREVIOUS][:2] = self.relevance
            channels[ECCENTRICITY] = eccentricity(self.relevance[0])
        if self.unchanged_s is not None:
            channels[PREVIOUS][2] = np.clip(self.unchanged_s / LONG_S, 0, 1)
        if self.attention is not None:
            channels[ATTENTION] = self.attention
        if self.embedding is not None:
            channels[EMBEDDING] = self.embedding
            channels[QUESTION] = 0
            if self.question is not None:  # cosine of embedding and question
                lengths = np.linalg.norm(self.embedding, axis=0) * np.linalg.norm(self.question)
                channels[QUESTION] = np.tensordot(self.question, self.embedding, axes=1) / np.maximum(lengths, 1e-6)
        return channels


def eccentricity(relevance: Map) -> Map:
    """Return the distance of each tile to the most relevant one, by the grid's diagonal: [gh, gw]; 0 for an even
    map."""
    rows, cols = relevance.shape
    if relevance.min() == relevance.max():
        return np.zeros_like(relevance)
    row, col = divmod(int(relevance.argmax()), cols)
    down = np.arange(rows, dtype=np.float32) - row
    right = np.arange(cols, dtype=np.float32) - col
    return (np.hypot(down[:, None], right) / max(1.0, float(np.hypot(rows - 1, cols - 1)))).astype(np.float32)


def with_history(texture: TextureArray, history: FrameHistory | None) -> TextureArray:
    """Return the texture array with the channels of the past filled in; `texture` itself for profiles that have none.

    `texture` is one picture's, not batched. Raises ShapeError for a history of another grid.
    """
    if history is None or texture.channels.shape[0] != FULL:
        return texture
    rows, cols = texture.entropy.shape
    channels = texture.channels.clone()
    places = torch.tensor(HISTORY)
    past = torch.from_numpy(history.channels((rows, cols)))[places]
    channels[places.to(channels.device)] = past.to(channels.device)
    return replace(texture, channels=channels)


def with_embeddings(texture: TextureArray, embedding: torch.Tensor, question: torch.Tensor | None) -> TextureArray:
    """Return a batched texture array with the components of all tiles' embeddings; differentiable in them.

    Args:
        texture: Channels of the pictures [B, 40, gh, gw].
        embedding: Components of the tiles, [B, 16, gh, gw].
        question: Components of the question, [B, 16]; None without one.
    """
    channels = texture.channels.clone()
    channels[:, EMBEDDING] = embedding.to(channels.dtype)
    if question is not None:
        channels[:, QUESTION] = F.cosine_similarity(embedding, question[..., None, None], dim=1, eps=1e-6)
    return replace(texture, channels=channels)
