"""`EmbeddingAxes`: the sixteen directions in which a model's tile embeddings become channels."""

from __future__ import annotations

import torch
from torch import nn

from arr_coc.errors import ShapeError
from arr_coc.types import EMBEDDING_COMPONENTS

_SEED = 40
_DEVIATIONS = 3.0
"""So many standard deviations are 1."""


class EmbeddingAxes(nn.Module):
    """An affine map of embeddings [..., D] to sixteen components in [−1, 1], saved with the allocator's weights.

    Begins with orthonormal directions drawn from a fixed seed, on embeddings of length √D; `fit` takes the principal
    components of a model's own (Jolliffe, 2002). Scorers learn what the components mean, so the axes stay as they were
    when training began, and nothing trains them.
    """

    mean: torch.Tensor
    axes: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        directions = torch.randn(width, EMBEDDING_COMPONENTS, generator=torch.Generator().manual_seed(_SEED))
        orthonormal = torch.linalg.qr(directions)[0].T
        axes = torch.zeros(EMBEDDING_COMPONENTS, width)
        axes[: len(orthonormal)] = orthonormal / _DEVIATIONS
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("axes", axes)

    def fit(self, embeddings: torch.Tensor) -> None:
        """Take the principal components of embeddings [n, D], each scaled to reach 1 at three standard deviations.

        Raises ShapeError for fewer than sixteen embeddings, or of another width.
        """
        if embeddings.ndim != 2 or embeddings.shape[1] != len(self.mean) or len(embeddings) < EMBEDDING_COMPONENTS:
            requirement = f"at least {EMBEDDING_COMPONENTS} rows, {len(self.mean)} wide"
            raise ShapeError(f"embeddings must be [n, D] of {requirement}, got {list(embeddings.shape)}")
        rows = embeddings.detach().double().cpu()
        centred = rows - rows.mean(dim=0)
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(rows))
        count = min(EMBEDDING_COMPONENTS, len(values))
        leading = vectors[:, -count:].flip(1)
        deviations = values[-count:].flip(0).clamp(min=1e-12).sqrt()
        # the sign of an eigenvector is arbitrary: its largest entry is made positive
        signs = leading.gather(0, leading.abs().argmax(dim=0, keepdim=True)).sign()
        axes = torch.zeros(self.axes.shape, dtype=torch.float64)
        axes[:count] = (leading * signs / (_DEVIATIONS * deviations)).T
        self.mean.copy_(rows.mean(dim=0))
        self.axes.copy_(axes)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Components float32 [..., 16] of embeddings [..., D]."""
        return ((embeddings.float() - self.mean) @ self.axes.T).clamp(-1, 1)
