"""Activations that are not kept on the device for the backward pass: computed again, or kept in the host's memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from arr_coc.qwen.vision import Attend, EncoderRows, run_block


def run_checkpointed(index: int, block: Any, hidden: torch.Tensor, rows: EncoderRows, attend: Attend) -> torch.Tensor:
    """Return the rows after a block of the vision tower.

    Its activations are computed again for the backward pass if `gradient_checkpointing`, transformers' switch, is on.

    Args:
        index: As `run_block`, and so are the others.
        block: The stock block.
        hidden: [B, N, C], of all rows.
        rows: Embedded patches.
        attend: Attention of a layer.
    """
    if not (block.training and getattr(block, "gradient_checkpointing", False)):
        return run_block(index, block, hidden, rows, attend)
    again: torch.Tensor = checkpoint(run_block, index, block, hidden, rows, attend, use_reentrant=False)
    return again


class ActivationsOnHost(save_on_cpu):
    """Context of a forward pass: what it saves for the backward pass goes to the host's memory, and comes back there.

    Weights, which autograd saves too, stay on the device. With a GPU the memory is pinned, so that copies run
    beside the computation.
    """

    def __init__(self) -> None:
        super().__init__(pin_memory=torch.cuda.is_available())
        to_host = self.pack_hook
        from_host = self.unpack_hook

        def pack(tensor: torch.Tensor) -> Any:
            # a layer saves a transposed view of its weight
            if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
                return tensor
            return to_host(tensor)

        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, torch.Tensor):
                return packed
            back: torch.Tensor = from_host(packed)
            return back

        self.pack_hook = pack
        self.unpack_hook = unpack
