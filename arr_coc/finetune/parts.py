"""`LearningRates`: which parts of a model learn, and how fast; `shard`: parts divided among processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from arr_coc.errors import OptionError, counted
from arr_coc.finetune.module import TrainableQwen


@dataclass(frozen=True, slots=True)
class LearningRates:
    """A part with the rate 0 is frozen."""

    allocator: float = 1e-4
    """Of the allocator that chooses tokens."""

    language: float = 0.0
    """Of the language model."""

    last_layers: int | None = None
    """Of the language model, only so many of its last layers learn; None: all, with embeddings and head."""

    vision: float = 0.0
    """Of the vision tower."""

    def groups(self, model: TrainableQwen) -> list[dict[str, Any]]:
        """Freeze what does not learn, and return the parameter groups of an optimiser.

        Raises OptionError if nothing would learn, or if the language model has fewer layers.
        """
        layers = model.qwen.language_model.layers
        if self.last_layers is not None and not 1 <= self.last_layers <= len(layers):
            raise OptionError(
                f"the language model has {counted(len(layers), 'layer')}, got last_layers={self.last_layers}",
                f"give 1 to {len(layers)}",
            )
        tower = model.qwen.tower
        if self.last_layers is None:
            language = _weights(model.model, besides=_weights(tower))
        else:
            language = _weights(layers[-self.last_layers :])
        parts = (
            ("allocator", self.allocator, _weights(model.allocator)),
            ("language", self.language, language),
            ("vision", self.vision, _weights(tower)),
        )
        model.requires_grad_(False)
        groups = []
        for name, rate, weights in parts:
            if rate > 0:
                for weight in weights:
                    weight.requires_grad_()
                groups.append({"params": weights, "lr": rate, "name": name})
        if not groups:
            raise OptionError("nothing would learn, because all rates are 0", "give one of them above 0")
        return groups


def shard(model: TrainableQwen) -> None:
    """Divide a model's weights, gradients and the state of an optimiser among all processes of `torch.distributed`.

    By FSDP (`fully_shard`), each layer of the language model by itself. Call it in every process before the optimiser
    is made. Weights are then distributed tensors: gather them with `torch.distributed.checkpoint.state_dict` to save
    them.
    """
    from torch.distributed.fsdp import fully_shard

    for layer in model.qwen.language_model.layers:
        fully_shard(layer)
    fully_shard(model)


def _weights(module: nn.Module, besides: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
    left_out = {id(weight) for weight in besides or ()}
    return [weight for weight in module.parameters() if weight.is_floating_point() and id(weight) not in left_out]
