"""Cost of feedback: of seeing what an answer attended to, and of learning from it, against answers that teach nothing.

    python -m benchmarks.feedback [--rounds N] [--device cuda] [--dtype bfloat16] [--out FILE]

Pictures of 1024×1024 from a drawn stream are answered about with twelve tokens, each with feedback and without, by
turns; what differs is the cost. At Qwen3-VL-2B's dimensions, with random weights, a CPU runs two layers of language and
four: two are looked at, as in the whole model, and the difference of the two sizes says what the others take. Times are
the processor's (all threads) on a CPU, wall time on CUDA. Without feedback nothing is hooked and nothing runs for it,
which `tests/arr_coc/qwen/test_session.py` sees to.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.qwen.attention import PROBED_LAYERS, PROBED_TOKENS
from arr_coc.qwen.loading import DTYPES, load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.untrained import LANGUAGE_LAYERS, VISION_BLOCKS, qwen3_vl_2b
from arr_coc.types import NS_PER_S, FrameStamp
from arr_coc.video.picture_allocator import PictureAllocator
from benchmarks.support.answer_ways import QUERY, TEXT_TOKENS, pictures, speak_on
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results" / "feedback.json"
BUDGETS = (102, 273)
WARM_UP = 2
FEW_LAYERS, MORE_LAYERS = PROBED_LAYERS, 2 * PROBED_LAYERS


def allocator_for(qwen: QwenVL, tokens: int) -> PictureAllocator:
    return PictureAllocator(qwen, QUERY, AllocatorOptions(budget=tokens))


def clock_of(qwen: QwenVL) -> Callable[[], float]:
    """Seconds: the processor's, or on CUDA those that pass until the device has done what it was given."""
    if qwen.device.type != "cuda":
        return time.process_time

    def wait_s() -> float:
        torch.cuda.synchronize(qwen.device)
        return time.perf_counter()

    return wait_s


def answer_times_ms(qwen: QwenVL, frames: Sequence[Rgb], tokens: int) -> dict[bool, list[float]]:
    """Time of an answer with feedback (True) and without (False), encoding included.

    Args:
        qwen: The model.
        frames: uint8 RGB [H, W, 3] each; the first ones warm up, and do not count.
        tokens: Visual tokens of a frame.
    """
    clock, allocator = clock_of(qwen), allocator_for(qwen, tokens)
    sessions = {
        feedback: AnswerSession(qwen, AnswerOptions("sparse", Decoding(TEXT_TOKENS), feedback=feedback))
        for feedback in (True, False)
    }
    times: dict[bool, list[float]] = {True: [], False: []}
    for index, picture in enumerate(frames):
        packet = allocator.allocate(picture, FrameStamp(index, index * NS_PER_S // 5, 0))
        for feedback in (index % 2 == 0, index % 2 == 1):
            started_s = clock()
            for _ in sessions[feedback].answer(packet, QUERY):
                pass
            times[feedback].append((clock() - started_s) * 1e3)
    return {feedback: series[WARM_UP:] for feedback, series in times.items()}


def learning_times_ms(qwen: QwenVL, frames: Sequence[Rgb], tokens: int) -> dict[bool, list[float]]:
    """Time of taking an answer in, and of the look after it at the same picture; with feedback (True) and without.

    Args:
        qwen: The model.
        frames: uint8 RGB [H, W, 3] each; the first ones warm up, and do not count.
        tokens: Visual tokens of a frame.
    """
    session = AnswerSession(qwen, AnswerOptions("sparse", Decoding(1)))
    allocators = {feedback: allocator_for(qwen, tokens) for feedback in (True, False)}
    times: dict[bool, list[float]] = {True: [], False: []}
    for index, picture in enumerate(frames):
        for feedback in (index % 2 == 0, index % 2 == 1):
            allocator = allocators[feedback]
            packet = allocator.allocate(picture, FrameStamp(2 * index, index * NS_PER_S // 5, 0))
            for _ in session.answer(packet, QUERY):
                pass
            started_s = time.process_time()
            allocator.on_answer(session.last.feedback if feedback else None)
            allocator.allocate(picture, FrameStamp(2 * index + 1, index * NS_PER_S // 5 + 1, 0))
            times[feedback].append((time.process_time() - started_s) * 1e3)
    return {feedback: series[WARM_UP:] for feedback, series in times.items()}


def costs(times_ms: dict[bool, list[float]]) -> dict[str, float]:
    """Medians of what was measured by turns, and of the pairs' differences."""
    pairs = zip(times_ms[True], times_ms[False], strict=True)
    return {
        "without_ms": statistics.median(times_ms[False]),
        "with_ms": statistics.median(times_ms[True]),
        "cost_ms": statistics.median(on - off for on, off in pairs),
    }


def report_of(figures: dict[str, float]) -> dict[str, Any]:
    """With the cost of one token that is looked at, and the share of an answer."""
    return {
        **{name: round(value, 4) for name, value in figures.items()},
        "cost_a_token_ms": round(figures["cost_ms"] / PROBED_TOKENS, 4),
        "share_of_answer": round(figures["cost_ms"] / figures["without_ms"], 5),
    }


def whole_model(few: dict[str, float], many: dict[str, float]) -> dict[str, float]:
    """Time of an answer of all layers, from one with few and one with more; the cost is the same for all."""
    a_layer_ms = max(0.0, many["without_ms"] - few["without_ms"]) / (MORE_LAYERS - FEW_LAYERS)
    without_ms = few["without_ms"] + (LANGUAGE_LAYERS - FEW_LAYERS) * a_layer_ms
    cost_ms = (few["cost_ms"] + many["cost_ms"]) / 2
    return {"without_ms": without_ms, "with_ms": without_ms + cost_ms, "cost_ms": cost_ms}


def measure_bundled(device: str, dtype: str, rounds: int) -> dict[str, Any]:
    qwen = speak_on(load_qwen(None, device=device, dtype=dtype))
    frames = pictures(rounds + WARM_UP)
    return _describe_model(qwen) | {
        "answers": {str(tokens): report_of(costs(answer_times_ms(qwen, frames, tokens))) for tokens in BUDGETS},
        "learning": {str(tokens): costs(learning_times_ms(qwen, frames, tokens)) for tokens in BUDGETS},
    }


def measure_2b(device: str, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Whole on CUDA; on the CPU from two sizes, with one block of vision, which has no part in it."""
    on_cuda = device.startswith("cuda")
    frames = pictures(rounds + WARM_UP)
    sizes = [(VISION_BLOCKS, LANGUAGE_LAYERS)] if on_cuda else [(1, FEW_LAYERS), (1, MORE_LAYERS)]
    measured: list[dict[str, float]] = []
    for blocks in sizes:
        qwen = speak_on(qwen3_vl_2b(device, dtype, *blocks))
        measured.append(costs(answer_times_ms(qwen, frames, BUDGETS[-1])))
    figures = measured[0] if on_cuda else whole_model(*measured)
    return _describe_model(qwen) | {"whole": on_cuda, "answers": {str(BUDGETS[-1]): report_of(figures)}}


def _describe_model(qwen: QwenVL) -> dict[str, Any]:
    return {"model": qwen.model_id, "dtype": str(qwen.model.dtype).removeprefix("torch.")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="counted answers of each kind")
    parser.add_argument("--rounds-2b", type=int, default=6, help="the same, at the dimensions of Qwen3-VL-2B")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto", choices=["auto", *DTYPES], help="of the bundled model")
    parser.add_argument("--dtype-2b", default="bfloat16", choices=[*DTYPES])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report = {
        "benchmark": "feedback",
        "machine": machine() | {"device": arguments.device, "threads": torch.get_num_threads()},
        "looked_at": {"layers": PROBED_LAYERS, "tokens": PROBED_TOKENS, "of_tokens": TEXT_TOKENS},
        "bundled": measure_bundled(arguments.device, arguments.dtype, arguments.rounds),
        "qwen3_vl_2b": measure_2b(arguments.device, DTYPES[arguments.dtype_2b], arguments.rounds_2b),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
