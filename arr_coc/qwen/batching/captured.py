"""Batched decode step as captured CUDA graphs, one for each size of batch, and the choice of a step.

All shapes are fixed: a graph of N rows covers the first N slots and the whole room of their keys, with a mask. Slots in
which nothing is spoken compute along, at the last place of their room, which no answer uses.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from arr_coc.qwen.attention import probed_layers
from arr_coc.qwen.batching.slots import SlotBlock
from arr_coc.qwen.batching.step import BatchStep, DecodeRow
from arr_coc.qwen.cuda_graph import Capture, cuda_graph
from arr_coc.qwen.decode import logits_of, through_layers
from arr_coc.qwen.qwenvl import QwenVL, rotation

_log = logging.getLogger(__name__)

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Rows of the graphs; each is captured when it is first needed."""


class CapturedRows:
    """One token in each of the first N slots of a block, on the tensors that it has now.

    The graph reads `inputs` int64 [3, N]: token, tokens held, text position. It makes `logits` [N, vocabulary], and for
    the layers that are looked at the rotated `queries` [N, heads, head_dim].
    """

    @torch.inference_mode()
    def __init__(self, qwen: QwenVL, block: SlotBlock, rows: int, capture: Capture) -> None:
        self._qwen = qwen
        self._rooms = [(layer.keys, layer.values) for layer in block.layers]
        device, head = qwen.device, qwen.model.lm_head.weight
        self._places = torch.arange(block.room, device=device)
        self._rows = torch.arange(rows, device=device)
        self._mask = torch.zeros(rows, 1, 1, block.room, dtype=torch.bool, device=device)
        self.inputs = torch.zeros(3, rows, dtype=torch.long, device=device)
        self.inputs[1] = block.room - 1
        self.logits = torch.zeros(rows, head.shape[0], dtype=head.dtype, device=device)
        attentions = [layer.self_attn for layer in qwen.language_model.layers]
        self.queries = {
            number: torch.zeros(
                rows,
                attentions[number].q_proj.out_features // attentions[number].head_dim,
                attentions[number].head_dim,
                dtype=block.layers[number].keys.dtype,
                device=device,
            )
            for number in probed_layers(len(attentions))
        }
        self.replay = capture(self._step, device)

    def fits(self, block: SlotBlock) -> bool:
        """Return True if the block still has the tensors that this was captured on."""
        return all(
            layer.keys is keys and layer.values is values
            for layer, (keys, values) in zip(block.layers, self._rooms, strict=True)
        )

    @torch.inference_mode()
    def _step(self) -> None:
        token, held, position = self.inputs
        cos, sin = rotation(self._qwen, position.float().expand(3, -1))
        embeds = self._qwen.language_model.embed_tokens(token)
        torch.le(self._places, held[:, None], out=self._mask[:, 0, 0])
        hidden = through_layers(self._qwen, embeds, cos.to(embeds)[:, None], sin.to(embeds)[:, None], self._attend)
        self.logits.copy_(logits_of(self._qwen, hidden))

    def _attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys, values = (rows[: len(query)] for rows in self._rooms[layer])
        keys[self._rows, :, self.inputs[1]] = key
        values[self._rows, :, self.inputs[1]] = value
        if layer in self.queries:
            self.queries[layer].copy_(query)
        grouped = query.view(len(query), key.shape[1], -1, query.shape[-1])  # those that share keys as rows
        return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self._mask)


class CapturedBatchStep:
    """As `BatchStep`, by graphs; one is captured again where the block's tensors are others."""

    def __init__(self, qwen: QwenVL, block: SlotBlock, capture: Capture = cuda_graph) -> None:
        self._qwen = qwen
        self._block = block
        self._capture = capture
        self._graphs: dict[int, CapturedRows] = {}
        self._host = torch.zeros(3, block.slots, dtype=torch.long, pin_memory=qwen.device.type == "cuda")

    def reserve(self, tokens: int) -> None:
        """Makes room for so many tokens in each slot at once, so that graphs need not be captured again for more."""
        self._block.make_room(tokens + 1)

    @torch.inference_mode()
    def __call__(self, rows: Sequence[DecodeRow], tokens: Sequence[int]) -> torch.Tensor:
        """Arguments and result as `BatchStep`. Raises RuntimeError where a step cannot be captured."""
        self.reserve(max(row.held for row in rows) + 1)
        span = max(row.slot for row in rows) + 1
        size = next(size for size in (*BATCH_SIZES, self._block.slots) if min(size, self._block.slots) >= span)
        graph = self._graph(min(size, self._block.slots))
        self._host[0], self._host[1] = 0, self._block.room - 1
        for row, token in zip(rows, tokens, strict=True):
            self._host[:, row.slot] = torch.tensor([token, row.held, row.position])
        graph.inputs.copy_(self._host[:, : graph.inputs.shape[1]], non_blocking=True)
        graph.replay()
        for row in rows:
            if row.watch is not None:
                for layer, queries in graph.queries.items():
                    keys = self._block.layers[layer].keys[row.slot, :, : row.held + 1]
                    row.watch(layer, queries[row.slot].clone(), keys)
            row.held += 1
            row.position += 1
        return graph.logits[torch.tensor([row.slot for row in rows], device=graph.logits.device)]

    def _graph(self, rows: int) -> CapturedRows:
        graph = self._graphs.get(rows)
        if graph is None or not graph.fits(self._block):
            # Frees the memory of those that are of no use any more before the next one takes some.
            self._graphs = {size: kept for size, kept in self._graphs.items() if kept.fits(self._block)}
            graph = self._graphs[rows] = CapturedRows(self._qwen, self._block, rows, self._capture)
        return graph


class BatchDecoder:
    """Steps of a batch: captured on a GPU, one call after another elsewhere, and where capturing fails.

    `capture`: what makes a step repeatable; None: a CUDA graph on a GPU, and elsewhere nothing.
    """

    def __init__(self, qwen: QwenVL, block: SlotBlock, capture: Capture | None = None) -> None:
        on_gpu = qwen.device.type == "cuda"
        capture = cuda_graph if capture is None and on_gpu else capture
        self._plain = BatchStep(qwen, block)
        self._captured = None if capture is None else CapturedBatchStep(qwen, block, capture)

    def reserve(self, tokens: int) -> None:
        """Notes that an answer may come to hold so many tokens."""
        if self._captured is not None:
            self._captured.reserve(tokens)

    def __call__(self, rows: Sequence[DecodeRow], tokens: Sequence[int]) -> torch.Tensor:
        """The logits [N, vocabulary] after the next tokens of N answers."""
        if self._captured is not None:
            try:
                return self._captured(rows, tokens)
            except RuntimeError as error:
                reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
                _log.warning("decoding continues without captured graphs: %s", reason)
                self._captured = None
        return self._plain(rows, tokens)
