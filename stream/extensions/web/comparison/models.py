"""Models that a comparison asks: loaded when they are needed, as many as the memory allows, each checked first."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from arr_coc.errors import ArrCocError, ModelError
from arr_coc.hub import bundled_model_path, cached_folder, local_folder
from arr_coc.qwen.memory_estimate import MemoryEstimate, ModelSpec, Workload
from stream.extensions.web.comparison.messages import NO_ALLOCATOR, CompareOptions, ModelChoice

if TYPE_CHECKING:
    import torch

    from arr_coc.model import ARRCOCQwen

MEMORY_SHARE = 0.75
"""Share of the free memory that models may fill when their number is automatic; the run beside them keeps the rest."""

GB = 1e9


class QwenLoader:
    """Loader of models on one device, with estimates of their memory. `models` are all that it may load."""

    def __init__(self, device: str = "auto", dtype: str = "auto", models: Sequence[str | None] = (None,)) -> None:
        self._device = device
        self._dtype = dtype
        self._models = models

    def load(self, model: str | None) -> ARRCOCQwen:
        """Load a model with its own allocator. Raises as `load_qwen`."""
        from arr_coc.qwen.deferred_imports import deferred_imports

        with deferred_imports(*self._models):
            from arr_coc.model import ARRCOCQwen

            return ARRCOCQwen.from_pretrained(model, device=self._device, dtype=self._dtype)

    def with_allocator(self, base: ARRCOCQwen, allocator: str) -> ARRCOCQwen:
        """Return a model with the weights of `base`, which are shared, and another allocator, or `none`.

        Raises as `load_layer`.
        """
        from arr_coc.layer_weights import load_layer
        from arr_coc.model import ARRCOCQwen

        qwen = base.qwen
        layer = None
        if allocator != NO_ALLOCATOR:
            layer = load_layer(allocator, qwen.model.get_input_embeddings().weight, qwen.model_id)
        return ARRCOCQwen(replace(qwen, allocator=layer))

    def estimate(self, folder: Path, name: str, tiles: int) -> MemoryEstimate:
        """Estimate the memory of a model that answers about pictures of `tiles` tiles. Raises as `ModelSpec.read`."""
        from arr_coc.qwen.cpu_precision import dtype_on_cpu

        cuda = self._resolved_device().type == "cuda"
        spec = ModelSpec.read(folder, name).for_device(cuda=cuda)
        if self._dtype == "auto" and not cuda:
            dtype = dtype_on_cpu(spec)
        else:
            dtype = self._dtype
        # tokens of question, template and answer, for the estimate
        return MemoryEstimate.of(spec, dtype, Workload(visual_tokens=tiles, other_tokens=512))

    def free_bytes(self) -> int:
        """Return the memory that can still be had on the device."""
        from arr_coc.qwen.batching.slots import free_bytes

        return free_bytes(self._resolved_device())

    def _resolved_device(self) -> torch.device:
        import torch

        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(automatic if self._device == "auto" else self._device)


class LoadedModels:
    """The models that were used last, each loaded once however many allocators it is compared with."""

    def __init__(self, options: CompareOptions, loader: QwenLoader) -> None:
        self._choices = {choice.name: choice for choice in options.models}
        self._loader = loader
        self._limit = options.loaded
        self._folders: dict[str, Path] = {}
        self._loaded: OrderedDict[Path, dict[str | None, ARRCOCQwen]] = OrderedDict()

    @property
    def limit(self) -> int | None:
        """Number of models that stay loaded; None before the first one if it is automatic."""
        return self._limit

    def is_loaded(self, name: str) -> bool:
        """Return True if a choice's model is in memory, with its allocator."""
        folder = self._folders.get(name)
        return folder is not None and self._choices[name].allocator in self._loaded.get(folder, ())

    def get(self, name: str, tiles: int) -> ARRCOCQwen:
        """Return a model, loaded unless it is, for pictures of `tiles` tiles; others are unloaded to make room.

        Raises ModelError if it is not on this machine or does not fit, and as `load_qwen` and `load_layer`.
        """
        choice = self._choices[name]
        if not self.is_loaded(name):
            folder = _folder_of(choice)
            if folder is None:
                raise ModelError(
                    f"{choice.model} is not on this machine",
                    f"download it first, with `caption` or `watch` and -m {choice.model}",
                )
            self._folders[name] = folder
        folder = self._folders[name]
        if not self.is_loaded(name):
            estimate = self._loader.estimate(folder, choice.name, tiles)
            if folder not in self._loaded:
                if self._limit is None:
                    self._limit = self._automatic_limit(tiles)
                while len(self._loaded) >= self._limit:
                    self._unload_oldest(folder)
                self._make_room(choice, folder, estimate.total)
                self._loaded[folder] = {None: self._loader.load(choice.model)}
            else:
                self._make_room(choice, folder, estimate.total - estimate.weights)
            by_allocator = self._loaded[folder]
            if choice.allocator is not None:
                by_allocator[choice.allocator] = self._loader.with_allocator(by_allocator[None], choice.allocator)
        self._loaded.move_to_end(folder)
        return self._loaded[folder][choice.allocator]

    def _make_room(self, choice: ModelChoice, folder: Path, needed_bytes: int) -> None:
        """Unload other models until `needed_bytes` are free. Raises ModelError."""
        while needed_bytes > (free := self._loader.free_bytes()):
            if not self._unload_oldest(folder):
                raise ModelError(
                    f"{choice.name} needs about {needed_bytes / GB:.1f} GB, and {free / GB:.1f} GB are free",
                    "close other programs, or compare a smaller model",
                )

    def _unload_oldest(self, kept_folder: Path) -> bool:
        """Unload the model unused for longest, but not `kept_folder`; False if there is none."""
        oldest = next((folder for folder in self._loaded if folder != kept_folder), None)
        if oldest is None:
            return False
        del self._loaded[oldest]
        gc.collect()
        return True

    def _automatic_limit(self, tiles: int) -> int:
        """Return how many of the models fit into the memory that is free now, whichever those are; at least 1."""
        sizes: dict[Path, int] = {}
        for choice in self._choices.values():
            try:
                folder = _folder_of(choice)
                if folder is not None:
                    sizes[folder] = self._loader.estimate(folder, choice.name, tiles).total
            except ArrCocError:  # reported when it is asked for
                continue
        room = MEMORY_SHARE * self._loader.free_bytes()
        count = 0
        for size in sorted(sizes.values(), reverse=True):
            room -= size
            if room < 0:
                break
            count += 1
        return max(1, count)


def _folder_of(choice: ModelChoice) -> Path | None:
    """Return a model's folder; None if it is on the hub only. Raises ModelNotFound."""
    if choice.model is None:
        return bundled_model_path().resolve()
    folder = local_folder(choice.model) or cached_folder(choice.model)
    return None if folder is None else folder.resolve()
