"""Decode step as a captured CUDA graph, and the choice of decoder of a session.

All shapes are fixed: attention runs over the whole room of the cache with a mask, and how far an answer is, its place
and its token lie in tensors that the graph itself advances.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

from arr_coc.qwen.attention import PROBED_TOKENS, AttentionProbe, attention_weights, probed_layers
from arr_coc.qwen.decode import GrowableLayer, choose_finite, decode, logits_of, not_finite, through_layers
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.qwenvl import QwenVL, rotation

_log = logging.getLogger(__name__)

AHEAD_TOKENS = 2
"""How many tokens are computed while the first of them is read; so many are in vain where an answer ends."""

WARM_UP_STEPS = 3
"""How often a step is run before it is captured, as libraries set themselves up at their first calls."""

_MAIL_ROWS = 2 * AHEAD_TOKENS + 2

Capture = Callable[[Callable[[], None], torch.device], Callable[[], None]]
"""Makes of a step, which reads and writes the same tensors every time, what repeats it. May run the step for that,
WARM_UP_STEPS times at most."""


@torch.inference_mode()
def cuda_graph(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as a CUDA graph."""
    beside, graph = _beside(device), torch.cuda.CUDAGraph()
    beside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(beside):
        for _ in range(WARM_UP_STEPS):
            step()
        # Other threads may allocate on the device meanwhile, as a texture there does: only this one may not.
        with torch.cuda.graph(graph, stream=beside, capture_error_mode="thread_local"):
            step()
    torch.cuda.current_stream(device).wait_stream(beside)
    return graph.replay


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    """The stream for captures on a device: always the same, as cuBLAS keeps memory for each that it has seen."""
    return torch.cuda.Stream(device)


class CudaGraphStep:
    """One token of an answer on the cache's tensors as they are now; `fits` says whether they still are the same.

    They have room for WARM_UP_STEPS tokens more than they hold.
    The last step made `logits` [vocabulary] and `choice` int64 [2] (the likeliest token, and whether all logits are
    finite); `read` says how many steps led to a token that was read.
    """

    @torch.inference_mode()
    def __init__(self, qwen: QwenVL, layers: list[GrowableLayer], capture: Capture = cuda_graph) -> None:
        self._qwen = qwen
        self._rooms = [(layer.room_keys, layer.room_values) for layer in layers]
        room, device = self._rooms[0][0].shape[-2], qwen.device
        self._probed = probed_layers(len(layers))
        self._places = torch.arange(room, device=device)
        # Behind what is held, for a capture may run the step, which writes there.
        self._held = torch.full((1,), layers[0].keys.shape[-2], dtype=torch.long, device=device)
        self._position = torch.zeros(3, 1, device=device)
        self._index = torch.zeros(1, dtype=torch.long, device=device)
        self._token = torch.zeros(1, dtype=torch.long, device=device)
        self._mask = torch.zeros(1, 1, 1, room, dtype=torch.bool, device=device)
        self._seen = torch.zeros(PROBED_TOKENS, room, device=device)  # the last row takes what comes too late
        self.choice = torch.zeros(2, dtype=torch.long, device=device)
        self.logits = torch.zeros(
            qwen.model.lm_head.weight.shape[0], dtype=qwen.model.lm_head.weight.dtype, device=device
        )
        self.read = 0
        self._replay = capture(self._step, device)

    def fits(self, layers: list[GrowableLayer]) -> bool:
        """Return True if the layers still write where they did when this was made."""
        return len(layers) == len(self._rooms) and all(
            layer.room_keys is keys and layer.room_values is values
            for layer, (keys, values) in zip(layers, self._rooms, strict=True)
        )

    @property
    def seen(self) -> torch.Tensor:
        """The attention of an answer's first tokens that were read, in the layers looked at, summed: float32 [room]."""
        return self._seen[: min(self.read, PROBED_TOKENS - 1)].sum(dim=0)

    @torch.inference_mode()
    def begin(self, token: torch.Tensor, held: int, position: int) -> None:
        """The next step takes `token` (int64 scalar), to a cache of `held` tokens, at a text position."""
        self._token.copy_(token.view(1))
        self._held.fill_(held)
        self._position.fill_(position)
        self._index.zero_()
        self._seen.zero_()
        self.read = 0

    def advance(self) -> None:
        """One step; it takes the token that the one before it chose, or that `take` put in its place."""
        self._replay()

    @torch.inference_mode()
    def take(self, token: torch.Tensor, finite: torch.Tensor) -> None:
        """Another choice than the likeliest: the next step takes this token (int64 scalar)."""
        self.choice.copy_(torch.stack([token, finite]))
        self._token.copy_(token.view(1))

    @torch.inference_mode()
    def _step(self) -> None:
        cos, sin = rotation(self._qwen, self._position)
        embeds = self._qwen.language_model.embed_tokens(self._token)
        torch.le(self._places, self._held, out=self._mask[0, 0, 0])
        hidden = through_layers(self._qwen, embeds, cos[0].to(embeds), sin[0].to(embeds), self._attend)
        logits = logits_of(self._qwen, hidden)[0]
        self.logits.copy_(logits)
        self.choice.copy_(torch.stack(choose_finite(logits, Decoding(), None)))
        self._token.copy_(self.choice[:1])
        for count in (self._held, self._position, self._index):
            count += 1

    def _attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys, values = self._rooms[layer]
        keys.index_copy_(2, self._held, key[:, :, None])
        values.index_copy_(2, self._held, value[:, :, None])
        if layer in self._probed:
            row = self._index.clamp(max=PROBED_TOKENS - 1)
            self._seen.index_add_(0, row, attention_weights(query[0], keys[0], self._mask[0]).sum(dim=(0, 1))[None])
        grouped = query.view(1, key.shape[1], -1, query.shape[-1])
        return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self._mask)


def decode_captured(
    step: CudaGraphStep,
    qwen: QwenVL,
    logits: torch.Tensor,
    held: int,
    position: int,
    options: Decoding,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[int]:
    """As `decode`, after a prefill of `held` tokens in all, for which and `max_tokens` more there is room.

    What it adds to the cache lies behind the prefill and is not counted as held.
    """
    generator = torch.Generator(logits.device).manual_seed(options.seed) if options.temperature else None
    mail = _ResultQueue(logits.device)
    first, finite = choose_finite(logits, options, generator)
    step.begin(first, held, position)
    mail.send(torch.stack([first, finite]))
    for index in range(options.max_tokens):
        while mail.sent < min(index + 1 + AHEAD_TOKENS, options.max_tokens):
            step.advance()
            if generator is not None:
                token, finite = choose_finite(step.logits, options, generator)
                step.take(token, finite)
            mail.send(step.choice)
        token_id, good = mail.read(index)
        step.read = index
        if not good:
            raise not_finite(index)
        if token_id in qwen.eos_ids:
            return
        yield token_id
        if should_stop is not None and should_stop():
            return


class _ResultQueue:
    """Small results on their way to the host: each can be waited for without those that come after it."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._rows = torch.zeros(_MAIL_ROWS, 2, dtype=torch.long, pin_memory=self._cuda)
        self._arrived: list[Any] = [None] * _MAIL_ROWS
        self.sent = 0

    def send(self, row: torch.Tensor) -> None:
        place = self.sent % _MAIL_ROWS
        self._rows[place].copy_(row, non_blocking=True)
        if self._cuda:
            self._arrived[place] = torch.cuda.current_stream(row.device).record_event()
        self.sent += 1

    def read(self, index: int) -> list[int]:
        place = index % _MAIL_ROWS
        if self._cuda:
            self._arrived[place].synchronize()
        found: list[int] = self._rows[place].tolist()
        return found


class DecodeRunner:
    """Decodes answers on one cache after another; a captured step is kept while the cache's tensors stay.

    `capture`: what makes a step repeatable; None: a CUDA graph on a GPU, and elsewhere nothing: a token is a call then.
    """

    def __init__(self, qwen: QwenVL, capture: Capture | None = None) -> None:
        self._qwen = qwen
        self._step: CudaGraphStep | None = None
        on_gpu = qwen.device.type == "cuda" and qwen.decodes_plainly
        self._capture = cuda_graph if capture is None and on_gpu else capture

    def decode(
        self,
        logits: torch.Tensor,
        position: int,
        kv: Any,
        options: Decoding,
        should_stop: Callable[[], bool] | None = None,
        probe: AttentionProbe | None = None,
    ) -> Generator[int, None, None]:
        """Token ids of one answer, as `arr_coc.qwen.decode.decode`.

        `probe` knows what they looked at once this has ended or was closed.
        """
        step = self._captured(kv, options.max_tokens)
        if step is None:
            watch = None if probe is None else probe.see
            yield from decode(self._qwen, logits, position, kv, options, should_stop, watch)
            return
        try:
            yield from decode_captured(step, self._qwen, logits, kv.get_seq_length(), position, options, should_stop)
        finally:
            if probe is not None:
                probe.add(step.seen)

    def _captured(self, kv: Any, max_tokens: int) -> CudaGraphStep | None:
        """The captured step for this cache, made anew where its tensors are others; None where there is to be none."""
        if self._capture is None:
            return None
        tokens = kv.get_seq_length() + max(max_tokens, WARM_UP_STEPS)
        for layer in kv.layers:
            layer.make_room(tokens, layer.keys, layer.values)
        if self._step is None or not self._step.fits(kv.layers):
            self._step = None  # frees its memory before the next one takes more
            try:
                self._step = CudaGraphStep(self._qwen, kv.layers, self._capture)
            except RuntimeError as error:
                reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
                _log.warning("decoding continues without a captured graph: %s", reason)
                self._capture = None
        return self._step
