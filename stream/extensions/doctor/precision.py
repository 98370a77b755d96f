"""Comparison of a checkpoint in int8 and int4 with itself in bfloat16, on one drawn picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from arr_coc.errors import ArrCocError, ModelError, counted
from arr_coc.hub import cached_folder, local_folder
from arr_coc.qwen.checkpoint import free_memory_bytes
from arr_coc.qwen.memory_estimate import ModelSpec
from arr_coc.qwen.quantisation import SMALL_DTYPES, check_small_dtype
from stream.config import Config
from stream.extensions.doctor.diagnostic import DiagnosticCheck

if TYPE_CHECKING:
    import torch

    from arr_coc.qwen.qwenvl import QwenVL

QUESTION = "Describe everything in this picture: things, colours, sizes, words and their places. What is unusual?"
"""Long enough for logits at some twenty places."""

WIDTH_PX, HEIGHT_PX = 448, 256

LARGEST_ERROR = {"int8": 0.1, "int4": 0.4}
"""Of logits, relative to their size. The test models of all families stay below."""


def folder_to_probe(config: Config) -> Path | None:
    """Return the folder of the model if it was named, is on this machine, can have small weights and fits into
    memory."""
    name = config.answer.model
    if name is None or config.answer.device not in ("auto", "cpu"):
        return None
    folder = local_folder(name) or cached_folder(name)
    if folder is None:
        return None
    try:
        spec = ModelSpec.read(folder, name, quantised=True)
        for dtype in SMALL_DTYPES:
            check_small_dtype(dtype, spec.quantised, name, experts=spec.experts_per_token, cuda=False)
    except ArrCocError:
        return None  # the check of the model says why
    if spec.checkpoint_bytes > free_memory_bytes():
        return None  # that of the memory does
    return folder


def precision(folder: Path) -> DiagnosticCheck:
    """Load the model in its own precision and in both small ones, one after the other, and compare their logits."""
    from arr_coc.qwen.cpu_precision import LARGE_PARAMETERS

    reference = "bfloat16" if ModelSpec.read(folder, folder.name).parameters >= LARGE_PARAMETERS else "float32"
    try:
        expected = _logits(folder, reference)
        found = {dtype: _logits(folder, dtype) for dtype in SMALL_DTYPES}
    except ModelError as error:
        return DiagnosticCheck("precision", "broken", error.problem, error.remedy)
    errors = {dtype: float((logits - expected).norm() / expected.norm()) for dtype, logits in found.items()}
    finding = "; ".join(
        f"{dtype} is off by {errors[dtype]:.1%} of {reference}'s logits, the likeliest token is the same at "
        f"{_agreeing(logits, expected)} of {counted(len(expected), 'place')}"
        for dtype, logits in found.items()
    )
    too_far = [dtype for dtype, error in errors.items() if not error <= LARGEST_ERROR[dtype]]
    if too_far:
        return DiagnosticCheck(
            "precision", "absent", finding, f"do not use --dtype {' or '.join(too_far)} with this model"
        )
    return DiagnosticCheck("precision", "works", finding)


def _agreeing(logits: torch.Tensor, expected: torch.Tensor) -> int:
    return int((logits.argmax(dim=1) == expected.argmax(dim=1)).sum())


def _logits(folder: Path, dtype: str) -> torch.Tensor:
    """Return the logits after each token behind the picture, less their mean, which no probability depends on: float32
    [tokens, vocabulary]."""
    from arr_coc.qwen.loading import load_qwen

    return _logits_of(load_qwen(folder, dtype=dtype, device="cpu"))


def _logits_of(qwen: QwenVL) -> torch.Tensor:
    import torch

    from arr_coc.allocation.allocator import AllocatorOptions
    from arr_coc.qwen.cache import empty_cache
    from arr_coc.qwen.decode import PromptPart
    from arr_coc.qwen.encoding import encode_packet
    from arr_coc.qwen.prompt import prompt_ids
    from arr_coc.types import FrameStamp, TokenPacket
    from arr_coc.video.picture_allocator import PictureAllocator
    from stream.scenes.catalogue import street

    allocator = PictureAllocator(qwen, QUESTION, AllocatorOptions(budget="100%"))
    packet = allocator.allocate(street(WIDTH_PX, HEIGHT_PX), FrameStamp(0, 0, 0))
    assert isinstance(packet, TokenPacket)
    ids = prompt_ids(qwen, None)
    part = PromptPart(qwen, 0, 0)
    part.text([*ids.head, *ids.frame_open])
    with torch.inference_mode():
        part.frame(encode_packet(qwen, packet, "sparse"))
        first = part.tokens
        part.text([*ids.frame_close, *ids.before_query, *qwen.plain_token_ids(ids.shown(QUESTION)), *ids.after_query])
        hidden = qwen.language_model(
            **part.inputs(), past_key_values=empty_cache(qwen).kv, use_cache=True
        ).last_hidden_state
        logits = qwen.model.lm_head(hidden[0, first:]).float()
    return logits - logits.mean(dim=1, keepdim=True)
