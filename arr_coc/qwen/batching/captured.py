"""Decode step as captured CUDA graphs, one for each size of batch.

All shapes are fixed: a graph of N rows covers the first N slots and the whole room of their keys, with a mask. Slots
without an answer are computed too and write to the last row of their room, which no answer uses. A recurrent layer's
state has no such unused row, so families with recurrent layers are not captured. The length, position and token of each
answer are in tensors that the graph itself advances, so that steps run ahead of the host.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

from arr_coc.qwen.attention import probed_layers
from arr_coc.qwen.batching.step import DecodeRow, likeliest
from arr_coc.qwen.cache import SlotBlock
from arr_coc.qwen.decode import choose_finite, layer_steps, logits_of
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.qwenvl import QwenVL, rotation
from arr_coc.types import finish

_log = logging.getLogger(__name__)

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Rows of the graphs; each is captured when it is first needed."""

AHEAD_TOKENS = 2
"""Number of steps that run ahead of the host; when an answer ends, as many are discarded."""

WARM_UP_STEPS = 3
"""Number of runs of a step before its capture, as libraries initialise in their first calls."""

Capture = Callable[[Callable[[], None], torch.device], Callable[[], None]]
"""Function that captures a step, which always reads and writes the same tensors, and returns a function that repeats
it. It may run the step first, at most WARM_UP_STEPS times."""


@torch.inference_mode()
def cuda_graph(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Capture a step as a CUDA graph, and return its replay function."""
    beside = _beside(device)
    graph = torch.cuda.CUDAGraph()
    beside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(beside):
        for _ in range(WARM_UP_STEPS):
            step()
        # Thread-local, as other threads, such as texture stores, may allocate on the device during the capture.
        with torch.cuda.graph(graph, stream=beside, capture_error_mode="thread_local"):
            step()
    torch.cuda.current_stream(device).wait_stream(beside)
    return graph.replay


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for captures on a device; it is reused, as cuBLAS keeps memory for every stream."""
    return torch.cuda.Stream(device)


class CapturedRows:
    """Captured step of one token in each of the first N slots of a block, on the block's current tensors.

    A step reads `inputs` int64 [4, N] (token, cached tokens, text position, and 1 for a slot with an answer, else 0)
    and advances them for the next step. It writes `logits` [N, vocabulary], `choices` int64 [N, 2] (the likeliest
    token, and 1 if all logits are finite, else 0), and the rotated `queries` [N, heads, head_dim] of the probed layers.
    """

    @torch.inference_mode()
    def __init__(self, qwen: QwenVL, block: SlotBlock, rows: int, capture: Capture) -> None:
        self._qwen = qwen
        self._rooms = {number: (layer.keys, layer.values) for number, layer in block.layers.items()}
        device = qwen.device
        head = qwen.model.lm_head.weight
        self._places = torch.arange(block.room, device=device)
        self._rows = torch.arange(rows, device=device)
        self._mask = torch.zeros(rows, 1, 1, block.room, dtype=torch.bool, device=device)
        self.inputs = torch.zeros(4, rows, dtype=torch.long, device=device)
        self.inputs[1] = block.room - 1  # unused row, as a capture may run the step, which writes a key
        self.logits = torch.zeros(rows, head.shape[0], dtype=head.dtype, device=device)
        self.choices = torch.zeros(rows, 2, dtype=torch.long, device=device)
        attentions = qwen.attentions
        self.queries = {
            number: torch.zeros(
                rows,
                attentions[number].q_proj.out_features // attentions[number].head_dim,
                attentions[number].head_dim,
                dtype=block.layers[number].keys.dtype,
                device=device,
            )
            for number in probed_layers(qwen.layers.attending)
        }
        self.replay = capture(self._step, device)

    def fits(self, block: SlotBlock) -> bool:
        """Return True if the block still has the tensors of the capture."""
        rooms = ((block.layers[number], *room) for number, room in self._rooms.items())
        return all(layer.keys is keys and layer.values is values for layer, keys, values in rooms)

    @torch.inference_mode()
    def _step(self) -> None:
        token, length, position, active = self.inputs
        cos, sin = rotation(self._qwen, position.float().expand(3, -1))
        embeds = self._qwen.language_model.embed_tokens(token)
        torch.le(self._places, length[:, None], out=self._mask[:, 0, 0])
        cos = cos.to(embeds)[:, None]
        sin = sin.to(embeds)[:, None]
        hidden = finish(layer_steps(self._qwen, embeds, cos, sin, self._attend))
        self.logits.copy_(logits_of(self._qwen, hidden))
        self.choices.copy_(likeliest(self.logits))
        token.copy_(self.choices[:, 0])
        for count in (length, position):
            count += active

    def _attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys, values = (rows[: len(query)] for rows in self._rooms[layer])
        keys[self._rows, :, self.inputs[1]] = key
        values[self._rows, :, self.inputs[1]] = value
        if layer in self.queries:
            self.queries[layer].copy_(query)
        grouped = query.view(len(query), key.shape[1], -1, query.shape[-1])  # heads that share keys as rows
        return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self._mask)


@dataclass(frozen=True, slots=True)
class _AheadStep:
    """A step that runs ahead: the index of its choices on the host, the event of their arrival, the queries of its
    probed rows in each layer, and the states of generators before it."""

    place: int
    arrival: Any
    queries: list[tuple[DecodeRow, int, torch.Tensor]]
    states: list[tuple[torch.Generator, torch.Tensor]]


class CapturedStep:
    """Decode step by captured graphs; a graph is captured again if the block's tensors change.

    While the host reads the choices of a step, AHEAD_TOKENS more steps run, as long as the same answers are open.
    """

    def __init__(self, qwen: QwenVL, block: SlotBlock, capture: Capture = cuda_graph) -> None:
        self._qwen = qwen
        self._block = block
        self._capture = capture
        self._graphs: dict[int, CapturedRows] = {}
        self._cuda = qwen.device.type == "cuda"
        self._inputs = torch.zeros(4, block.slots, dtype=torch.long, pin_memory=self._cuda)
        self._choices = torch.zeros(AHEAD_TOKENS + 1, block.slots, 2, dtype=torch.long, pin_memory=self._cuda)
        self._rows: list[DecodeRow] = []
        self._pending_steps: deque[_AheadStep] = deque()
        self._steps = 0

    @torch.inference_mode()
    def __call__(self, rows: Sequence[DecodeRow], options: Decoding) -> list[list[int]]:
        """As `Decoder`. Raises RuntimeError if a step cannot be captured."""
        if list(rows) != self._rows or not self._graph.fits(self._block):
            self._load(rows)
        # Not past the end of any answer, as the room ends there.
        lookahead = min(AHEAD_TOKENS, min(row.remaining for row in rows) - 1)
        while len(self._pending_steps) <= lookahead:
            self._pending_steps.append(self._run(options))
        step = self._pending_steps.popleft()
        if self._cuda:
            step.arrival.synchronize()
        for row, layer, query in step.queries:
            if row.probe is not None:  # removed once its answer has enough tokens
                row.probe.see(layer, query, self._block.layers[layer].keys[row.slot, :, : row.cached_tokens + 1])
        for row in rows:
            row.advance()
        choices: list[list[int]] = self._choices[step.place].tolist()
        return [choices[row.slot] for row in rows]

    def pause(self) -> None:
        """Discard the steps that ran ahead, and rewind their generators and penalties; other steps may come before the
        next call."""
        for generator, state in self._pending_steps[0].states if self._pending_steps else ():
            generator.set_state(state)
        for row in self._rows:
            if row.penalties is not None:
                row.penalties.rewind()
        self._pending_steps.clear()
        self._rows = []

    def drop_outdated(self) -> None:
        """Free the graphs of tensors that the block no longer has, and with them the tensors."""
        self._graphs = {size: graph for size, graph in self._graphs.items() if graph.fits(self._block)}

    def _load(self, rows: Sequence[DecodeRow]) -> None:
        """Continue with these answers: discard the steps that ran ahead with others."""
        self.pause()
        span = max(row.slot for row in rows) + 1
        size = next(size for size in (*BATCH_SIZES, self._block.slots) if min(size, self._block.slots) >= span)
        size = min(size, self._block.slots)
        self._block.make_room(max(row.cached_tokens + row.remaining for row in rows) + 1, size)
        self.drop_outdated()  # before the next capture allocates
        if size not in self._graphs:
            self._graphs[size] = CapturedRows(self._qwen, self._block, size, self._capture)
        self._graph = self._graphs[size]
        self._inputs.zero_()
        self._inputs[1] = self._block.room - 1
        for row in rows:
            self._inputs[:, row.slot] = torch.tensor([row.token, row.cached_tokens, row.position, 1])
        self._graph.inputs.copy_(self._inputs[:, :size], non_blocking=True)
        self._rows = list(rows)

    def _run(self, options: Decoding) -> _AheadStep:
        graph = self._graph
        states = []
        graph.replay()
        for row in self._rows:
            if row.generator is not None:
                states.append((row.generator, row.generator.get_state()))
            if row.chooses_alone:
                choice = torch.stack(choose_finite(graph.logits[row.slot], options, row.generator, row.penalties))
                graph.choices[row.slot] = choice
                graph.inputs[0, row.slot] = choice[0]
        probed = [row for row in self._rows if row.probe is not None]
        queries = [(row, layer, query[row.slot].clone()) for layer, query in graph.queries.items() for row in probed]
        self._steps += 1
        place = self._steps % len(self._choices)
        self._choices[place, : len(graph.choices)].copy_(graph.choices, non_blocking=True)
        if self._cuda:
            arrival = torch.cuda.current_stream(graph.choices.device).record_event()
        else:
            arrival = None
        return _AheadStep(place, arrival, queries, states)
