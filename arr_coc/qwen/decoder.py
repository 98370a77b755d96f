"""How a session's answers are decoded: from a captured graph on a GPU, one call a token elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import Any

import torch

from arr_coc.qwen.attention import AttentionProbe
from arr_coc.qwen.captured import WARM_UP_STEPS, Capture, CapturedStep, cuda_graph, decode_captured
from arr_coc.qwen.decode import decode
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.qwenvl import QwenVL

_log = logging.getLogger(__name__)


class Decoder:
    """Decodes answers on one cache after another; a captured step is kept while the cache's tensors stay.

    `capture`: what makes a step repeatable; None: a CUDA graph on a GPU, and elsewhere nothing: a token is a call then.
    """

    def __init__(self, qwen: QwenVL, capture: Capture | None = None) -> None:
        self._qwen = qwen
        self._step: CapturedStep | None = None
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

    def _captured(self, kv: Any, max_tokens: int) -> CapturedStep | None:
        """The captured step for this cache, made anew where its tensors are others; None where there is to be none."""
        if self._capture is None:
            return None
        tokens = kv.get_seq_length() + max(max_tokens, WARM_UP_STEPS)
        for layer in kv.layers:
            layer.make_room(tokens, layer.keys, layer.values)
        if self._step is None or not self._step.fits(kv.layers):
            self._step = None  # frees its memory before the next one takes more
            try:
                self._step = CapturedStep(self._qwen, kv.layers, self._capture)
            except RuntimeError as error:
                reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
                _log.warning("decoding goes on without a captured graph: %s", reason)
                self._capture = None
        return self._step
