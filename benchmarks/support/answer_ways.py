"""Pictures to answer, the ways to answer them, their peak memory, and a plot.

python -m benchmarks.support.answer_ways WAY DEVICE DTYPE
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.hub import bundled_model_path
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import Encode, FrameStamp
from arr_coc.video.picture_allocator import PictureAllocator
from benchmarks.support.harness import resident_mib
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.runtime.child import python_command, python_environment
from stream.sources.factory import open_source

SIZE = "1024x1024"
EVERY_FRAMES = 5

PARTS = {"prepare_ms": "0.6", "encode_ms": "tab:blue", "prefill_ms": "tab:orange", "decode_ms": "tab:green"}


def pictures(count: int) -> list[Rgb]:
    """Return pictures of the drawn stream, a fifth of a second apart."""
    frames: list[Rgb] = []
    with closing(open_source("scene:demo", CaptureConfig(size=SIZE), MonotonicClock())) as source:
        for index, frame in enumerate(source.frames()):
            if index % EVERY_FRAMES == 0:
                frames.append(np.array(frame.planes.planes[0]))
            if len(frames) == count:
                break
    return frames


def plot(report: dict[str, Any], path: Path) -> None:
    """A panel for each model; the ways beneath each other, the stock model on top."""
    from matplotlib.figure import Figure

    models = [report[name] for name in ("bundled", "qwen3_vl_2b") if name in report]
    figure = Figure(figsize=(6.5 * len(models), 4.2), layout="constrained")
    for panel, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        _draw(panel, model)
    figure.savefig(path, dpi=120, format="png")


def _draw(panel: Any, model: dict[str, Any]) -> None:
    names = [f"{row['way'].split()[0]}, {row['visual_tokens']} tokens" for row in model["ways"]]
    left = [0.0] * len(names)
    for part, colour in PARTS.items():
        widths = [row[part] for row in model["ways"]]
        panel.barh(names, widths, left=left, color=colour, label=part.removesuffix("_ms"))
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, row in enumerate(model["ways"]):
        panel.text(left[place], place, f" {row['answers_hz']:.2g}/s", va="center", fontsize=8)
    panel.invert_yaxis()
    panel.margins(x=0.12)
    panel.set_xlabel("milliseconds from picture to twelve tokens")
    suffix = "" if model.get("whole", True) else ", extrapolated from one and two blocks"
    panel.set_title(f"{model['model']}\n{model['dtype']}{suffix}", fontsize=10)
    panel.legend(fontsize=8, loc="lower right")


TEXT_TOKENS = 12
QUERY = "What do you see?"
TILES = 1024
BUDGETS = (TILES, 273, 102)
"""Of a 1024×1024 picture: 100, 27 and 10 %."""

WAYS: tuple[tuple[Encode, int], ...] = (
    ("full", TILES),
    ("prune", 273),
    ("prune", 102),
    ("sparse", TILES),
    ("sparse", 273),
    ("sparse", 102),
    ("incremental", 273),
    ("incremental", 102),
)


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """One answer's times in milliseconds, from a picture in ordinary memory.

    `prepare_ms`: the stock image processor, or texture and allocation. `first_token_ms` counts from the picture, and
    `answer_ms` until the last of TEXT_TOKENS tokens. On a GPU the stock model is waited for after encoding, this
    project's ways are not: there much of their encoding counts as `prefill_ms`.
    """

    prepare_ms: float
    encode_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_ms: float
    answer_ms: float


class AnswerWay(Protocol):
    """Way to make answers; `take` answers about the next picture of a stream. `visual_tokens`: of the last answer."""

    name: str
    visual_tokens: int

    def take(self, picture: Rgb, index: int) -> AnswerTimes: ...


class ArrCocWay:
    """This project: texture, allocation, encoding, decoding. Every way keeps its own."""

    def __init__(self, qwen: QwenVL, encode: Encode, tokens: int) -> None:
        self.name = f"{encode} {tokens}"
        self.visual_tokens = tokens
        self._device = qwen.device
        self._allocator = PictureAllocator(qwen, QUERY, AllocatorOptions(budget=tokens, explore=0.0), encode)
        self._session = AnswerSession(qwen, AnswerOptions(encode, Decoding(TEXT_TOKENS)))

    def take(self, picture: Rgb, index: int) -> AnswerTimes:
        started = time.perf_counter()
        packet = self._allocator.allocate(picture, FrameStamp(index, index * 200_000_000, 0))
        prepared = time.perf_counter()
        text = self._session.answer(packet, QUERY)
        for _ in text:
            pass
        _synchronize(self._device)
        ended = time.perf_counter()
        answer = self._session.last
        if answer.work.text_tokens != TEXT_TOKENS:
            raise RuntimeError(f"{self.name} decoded {answer.work.text_tokens} tokens")
        self.visual_tokens = answer.work.tokens_used
        prepare_ms = (prepared - started) * 1e3
        self._allocator.on_answer(answer.feedback)
        return AnswerTimes(
            prepare_ms,
            answer.work.encode_ms,
            answer.work.prefill_ms,
            prepare_ms + answer.first_token_ms,
            answer.work.decode_ms,
            (ended - started) * 1e3,
        )


class Stock:
    """transformers' own image processor and `generate`, greedy, on the same weights."""

    name = f"stock {TILES}"

    def __init__(self, qwen: QwenVL, processor: Any, tiles: int = TILES) -> None:
        self._qwen = qwen
        self.visual_tokens = tiles
        self._processor = processor
        message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUERY}]}
        text = qwen.tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        text = text.replace("<|image_pad|>", "<|image_pad|>" * tiles)
        self._ids = qwen.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"].to(qwen.device)

    @torch.inference_mode()
    def take(self, picture: Rgb, index: int) -> AnswerTimes:
        qwen, device = self._qwen, self._qwen.device
        started = time.perf_counter()
        pixels = self._processor(images=[picture], return_tensors="pt")
        prepared = time.perf_counter()
        with _record_encoding(qwen) as encoded:
            stream = _Arrivals(device)
            qwen.model.generate(
                input_ids=self._ids,
                attention_mask=torch.ones_like(self._ids),
                pixel_values=pixels["pixel_values"].to(device, qwen.model.dtype),
                image_grid_thw=pixels["image_grid_thw"].to(device),
                mm_token_type_ids=(self._ids == qwen.model.config.image_token_id).int(),
                max_new_tokens=TEXT_TOKENS,
                do_sample=False,
                streamer=stream,
            )
        _synchronize(device)
        ended = time.perf_counter()
        _, first, *others = stream.times
        if len(others) != TEXT_TOKENS - 1:
            raise RuntimeError(f"the stock model decoded {len(others) + 1} tokens")
        return AnswerTimes(
            *(1e3 * seconds for seconds in (prepared - started, encoded[0] - prepared, first - encoded[0])),
            *(1e3 * seconds for seconds in (first - started, ended - first, ended - started)),
        )


class _Arrivals:
    """A streamer of `generate` that notes when the prompt, and then each token, was given to it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.times: list[float] = []

    def put(self, ids: torch.Tensor) -> None:
        _synchronize(self._device)
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is kept back."""


@contextmanager
def _record_encoding(qwen: QwenVL) -> Iterator[list[float]]:
    """Times at which the vision tower was done, once it was."""
    times: list[float] = []

    def note(*_: object) -> None:
        _synchronize(qwen.device)
        times.append(time.perf_counter())

    hook = qwen.tower.register_forward_hook(note)
    try:
        yield times
    finally:
        hook.remove()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def speak_on(qwen: QwenVL) -> QwenVL:
    """The model with no token that ends an answer, so that all are equally long."""
    vars(qwen)["eos_ids"] = frozenset()
    qwen.model.generation_config.eos_token_id = None
    qwen.model.generation_config.pad_token_id = 0
    return qwen


def stock_processor() -> Any:
    """transformers' own image processor, as the bundled model's folder describes it."""
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(bundled_model_path(), trust_remote_code=False)


def way_named(qwen: QwenVL, name: str) -> AnswerWay:
    """The way of this name."""
    if name == Stock.name:
        return Stock(qwen, stock_processor())
    encode, tokens = next(way for way in WAYS if name == f"{way[0]} {way[1]}")
    return ArrCocWay(qwen, encode, tokens)


ANSWERS = 2
_CLEAR = Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"
"""Written to `clear_refs`, it makes the peak what is resident now (proc(5))."""


def peak_mib(way: str, device: str, dtype: str) -> float | None:
    """Peak in a separate process; None if the system does not report it (other than Linux)."""
    command, environment = python_command("benchmarks.support.answer_ways", way, device, dtype), python_environment()
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    peak = process.stdout.split()[-1]
    return None if peak == "None" else float(peak)


def main() -> None:
    name, device, dtype = sys.argv[1:]
    qwen = speak_on(load_qwen(None, device=device, dtype=dtype))
    way, frames = way_named(qwen, name), pictures(ANSWERS)
    on_cuda = qwen.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 2**20
    elif _CLEAR.exists():
        _CLEAR.write_text(_FORGET_PEAK)
        before = resident_mib("self", "VmRSS")
    else:
        print(None)
        return
    for index, picture in enumerate(frames):
        way.take(picture, index)
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_cuda else resident_mib("self")
    print(round(peak - before, 1))


if __name__ == "__main__":
    main()
