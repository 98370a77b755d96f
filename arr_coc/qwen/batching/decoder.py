"""Decoder of the open answers: one more token of each, by captured steps or by single calls."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from arr_coc.qwen.batching.slots import SlotBlock
from arr_coc.qwen.batching.step import DecodeRow, DecodeStep, likeliest
from arr_coc.qwen.decode import choose, choose_finite
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.qwenvl import QwenVL

if TYPE_CHECKING:
    from arr_coc.qwen.batching.captured import Capture, CapturedStep
    from arr_coc.qwen.constraint import GrammarCompiler

_log = logging.getLogger(__name__)


class Decoder:
    """Decoder of the open answers: by captured steps on a GPU; by single calls on a CPU, for families with recurrent
    layers, for answers with a schema, and if capture fails.

    `capture` makes a step repeatable; None: CUDA graphs on a GPU, no capture elsewhere.
    """

    def __init__(self, qwen: QwenVL, block: SlotBlock, capture: Capture | None = None) -> None:
        if qwen.family.recurrent:
            capture = None
        elif capture is None and qwen.device.type == "cuda" and qwen.decodes_plainly:
            from arr_coc.qwen.batching.captured import cuda_graph

            capture = cuda_graph
        self._qwen = qwen
        self._step = DecodeStep(qwen, block)
        self._captured: CapturedStep | None = None
        if capture is not None:
            from arr_coc.qwen.batching.captured import CapturedStep

            self._captured = CapturedStep(qwen, block, capture)

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Compiler of the schemas of answers. Raises as `GrammarCompiler`."""
        from arr_coc.qwen.constraint import GrammarCompiler

        return GrammarCompiler(self._qwen)

    def __call__(self, rows: Sequence[DecodeRow], options: Decoding) -> list[list[int]]:
        """Add the token of each row. Return the next token of each, and 1 if its logits are finite, else 0, with one
        device synchronisation."""
        if self._captured is not None and any(row.constraint is not None for row in rows):
            self._captured.pause()
        elif self._captured is not None:
            try:
                return self._captured(rows, options)
            except RuntimeError as error:
                reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
                _log.warning("decoding continues without captured graphs: %s", reason)
                self._captured = None
        return choose_rows(rows, self._step(rows), options)


def choose_rows(rows: Sequence[DecodeRow], logits: torch.Tensor, options: Decoding) -> list[list[int]]:
    """Choose the next token of each answer.

    Args:
        rows: The N answers, with their generators and constraints.
        logits: [N, vocabulary]; overwritten if an answer has a constraint.
        options: Options of the choice.

    Returns:
        The token of each answer, and 1 if its logits are finite, else 0.
    """
    if any(row.constraint is not None for row in rows):
        return _choose_allowed(rows, logits, options)
    if options.temperature == 0:
        choices = likeliest(logits)
    else:
        draws = [
            choose_finite(row_logits, options, row.generator) for row, row_logits in zip(rows, logits, strict=True)
        ]
        choices = torch.stack([torch.stack(pair) for pair in draws])
    pairs: list[list[int]] = choices.tolist()
    return pairs


@torch.inference_mode()
def _choose_allowed(rows: Sequence[DecodeRow], logits: torch.Tensor, options: Decoding) -> list[list[int]]:
    """As `choose_rows`, of answers with constraints among them; overwrites the logits of tokens that may not come."""
    finite = logits.isfinite().all(dim=-1)
    for row, row_logits in zip(rows, logits, strict=True):
        if row.constraint is not None:
            row.constraint.mask(row_logits)
    tokens = torch.stack(
        [choose(row_logits, options, row.generator) for row, row_logits in zip(rows, logits, strict=True)]
    )
    pairs: list[list[int]] = torch.stack([tokens, finite.long()], dim=-1).tolist()
    return pairs
