"""A model in 8 or 4 bits: from its cache beside the checkpoint, or from weights that were just loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from arr_coc.qwen.quantisation import SmallDtype
from arr_coc.qwen.small_weights.attention import use_small_attention
from arr_coc.qwen.small_weights.cache import WeightCache
from arr_coc.qwen.small_weights.feed_forward import use_small_feed_forward
from arr_coc.qwen.small_weights.layers import find_sources, shrink_weights
from arr_coc.qwen.small_weights.norms import use_small_norms


class WeightShrinker:
    """Maker of the model in `folder` with small weights, which are kept beside it if they are `cached`."""

    def __init__(self, folder: Path, dtype: SmallDtype, *, cached: bool) -> None:
        self._folder = folder
        self._dtype = dtype
        self._cache = WeightCache(folder, dtype) if cached else None

    @property
    def notices(self) -> list[str]:
        """Lines to show to the user."""
        return [] if self._cache is None else self._cache.notices

    def load(self) -> Any | None:
        """Return the cached model; None if there is none that can be used."""
        model = None if self._cache is None else self._cache.load()
        if model is not None:
            self._finish(model)
        return model

    def shrink(self, model: Any, check: Callable[[str, torch.Tensor], None]) -> None:
        """Reduce the weights of a model that was just loaded, each after its `check`, and cache them."""
        shrink_weights(model, self._dtype, check)
        self._finish(model)
        if self._cache is not None:
            self._cache.save(model)

    def _finish(self, model: Any) -> None:
        find_sources(model, self._folder)
        use_small_feed_forward(model)
        use_small_norms(model)
        use_small_attention(model.model.language_model)
