"""Models that a comparison asks: loaded when they are needed, two at most, each checked against the memory first."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from arr_coc.errors import ModelError
from arr_coc.hub import bundled_model_path, cached_folder, local_folder
from arr_coc.qwen.checkpoint import free_memory_bytes
from arr_coc.qwen.memory_estimate import MemoryEstimate, ModelSpec, Workload
from stream.compare.messages import ModelChoice

if TYPE_CHECKING:
    from arr_coc.model import ARRCOCQwen

LOADED_MAX = 2
"""Models in memory at a time."""

OTHER_TOKENS = 512
"""Tokens of question, template and answer, for the estimate."""

GB = 1e9


class LoadedModels:
    """The models that were used last. `load` and `free` may be others in tests."""

    def __init__(
        self,
        choices: list[ModelChoice],
        load: Callable[[ModelChoice], ARRCOCQwen],
        dtype: str = "auto",
        free: Callable[[], int] = free_memory_bytes,
    ) -> None:
        self._choices = {choice.name: choice for choice in choices}
        self._load = load
        self._dtype = dtype
        self._free = free
        self._loaded: OrderedDict[str, ARRCOCQwen] = OrderedDict()

    @property
    def names(self) -> tuple[str, ...]:
        """The loaded models, the one unused for longest first."""
        return tuple(self._loaded)

    def get(self, name: str, tiles: int) -> ARRCOCQwen:
        """Return a model, loaded where it is not yet, for pictures of so many tiles; others leave to make room.

        Raises ModelError where it is not on this machine or does not fit, and as `load_qwen`.
        """
        if name not in self._loaded:
            choice = self._choices[name]
            needed = self._needed(choice, tiles)
            while self._loaded and (len(self._loaded) >= LOADED_MAX or needed > self._free()):
                self._loaded.popitem(last=False)
                gc.collect()
            if needed > (free := self._free()):
                raise ModelError(
                    f"{name} needs about {needed / GB:.1f} GB, and {free / GB:.1f} GB are free",
                    "close other programs, or compare a smaller model",
                )
            self._loaded[name] = self._load(choice)
        self._loaded.move_to_end(name)
        return self._loaded[name]

    def _needed(self, choice: ModelChoice, tiles: int) -> int:
        folder = (
            bundled_model_path() if choice.model is None else local_folder(choice.model) or cached_folder(choice.model)
        )
        if folder is None:
            raise ModelError(
                f"{choice.name} is not on this machine",
                f"download it first, with `caption` or `watch` and -m {choice.name}",
            )
        spec = ModelSpec.read(folder, choice.name)
        return MemoryEstimate.of(
            spec.loaded(cuda=False), self._dtype, Workload(visual_tokens=tiles, other_tokens=OTHER_TOKENS)
        ).total
