"""Answers of a fixed camera with and without a visual memory: first token, operations, tokens.

    python -m benchmarks.memory [--answers N] [--answers-2b N] [--device cuda] [--dtype-2b bfloat16] [--out FILE]

A camera that stands still looks at a drawn scene of 1024×1024 pixels. Between two answers a patch of another picture
moves on: 5 % of the tiles change, those that it leaves and those that it covers. The ways are asked about the same
pictures by turns, with twelve tokens each: a snapshot of chosen tokens (`sparse`), one that is encoded incrementally,
and a memory with and without refinement; the bundled model, and Qwen3-VL-2B's dimensions with random weights, on a CPU
from one and two blocks as `benchmarks.answer` has it.

Targets: at the 2B's dimensions the first token of a memory that does not refine in at most 0.2 of a snapshot's time,
both at 27 % of the tokens; its operations at 10 % at most half of the snapshot's at 27 %.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.group import GroupOptions
from arr_coc.qwen.loading import DTYPES, load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.untrained import LANGUAGE_LAYERS, VISION_BLOCKS, qwen3_vl_2b
from arr_coc.types import NS_PER_S, Encode, FrameStamp
from arr_coc.video.picture_allocator import PictureAllocator
from benchmarks.support.answer_ways import QUERY, TEXT_TOKENS, pictures, speak_on
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results" / "memory.json"
EVERY_S = 2
SIDE_PX = 1024
PATCH_TILES = 4, 6
STEP_TILES = 5, 7
"""Rows and columns from one place of the patch to the next, which does not meet it."""

FIRST_TOKEN_TARGET, WORK_TARGET = 0.2, 0.5


@dataclass(frozen=True, slots=True)
class Way:
    """Way to answer about a stream: its tokens of an answer, and its memory, if it has one."""

    name: str
    tokens: int
    encode: Encode = "sparse"
    memory: GroupOptions | None = None


WAYS = (
    Way("sparse 273", 273),
    Way("sparse 102", 102),
    Way("incremental 273", 273, "incremental"),
    Way("memory 273", 273, memory=GroupOptions(2048, 600.0, refine=False)),
    Way("memory 102", 102, memory=GroupOptions(2048, 600.0, refine=False)),
    Way("memory 102 refining", 102, memory=GroupOptions(2048, 600.0)),
)


@dataclass(frozen=True, slots=True)
class AnswerCosts:
    """Costs of one answer: milliseconds, operations, and tokens."""

    prepare_ms: float
    encode_ms: float
    prefill_ms: float
    first_token_ms: float
    flops: int
    prefilled_tokens: int
    appended_tokens: int
    memory_tokens: int


class Camera:
    """A way at work: texture, allocation, session."""

    def __init__(self, qwen: QwenVL, way: Way) -> None:
        options = AllocatorOptions(budget=way.tokens, explore=0.0, memory=way.memory)
        self._allocator = PictureAllocator(qwen, QUERY, options, way.encode)
        self._session = AnswerSession(qwen, AnswerOptions(way.encode, Decoding(TEXT_TOKENS)))

    def take(self, picture: Rgb, index: int) -> AnswerCosts:
        """The answer about the next picture."""
        started_s = perf_counter()
        packet = self._allocator.allocate(picture, FrameStamp(index, index * EVERY_S * NS_PER_S, 0))
        prepared_s = perf_counter()
        for _ in self._session.answer(self._allocator.group if packet.place else packet, QUERY):
            pass
        last = self._session.last
        self._allocator.on_answer(last.feedback)
        prepare_ms = (prepared_s - started_s) * 1e3
        return AnswerCosts(
            prepare_ms,
            last.encode_ms,
            last.prefill_ms,
            prepare_ms + last.first_token_ms,
            last.work.flops,
            last.prefilled_tokens,
            last.appended_tokens,
            last.memory_tokens,
        )


def fixed_camera(count: int) -> list[Rgb]:
    """Pictures of one drawn scene, over which a patch of another one moves."""
    ground, other = pictures(2)[0], pictures(40)[-1][::-1, ::-1]
    rows, cols = (32 * tiles for tiles in PATCH_TILES)
    frames = []
    for index in range(count):
        picture = ground.copy()
        top, left = (
            32 * (step * index % (SIDE_PX // 32 - size)) for step, size in zip(STEP_TILES, PATCH_TILES, strict=True)
        )
        picture[top : top + rows, left : left + cols] = other[top : top + rows, left : left + cols]
        frames.append(picture)
    return frames


def measure(qwen: QwenVL, answers: int) -> dict[str, list[AnswerCosts]]:
    """The ways by turns, so that what else the machine does falls on all of them; the first answer is not counted."""
    cameras = {way.name: Camera(qwen, way) for way in WAYS}
    runs: dict[str, list[AnswerCosts]] = {name: [] for name in cameras}
    for index, picture in enumerate(fixed_camera(answers + 1)):
        for name, camera in cameras.items():
            runs[name].append(camera.take(picture, index))
    return {name: turns[1:] for name, turns in runs.items()}


def summary(turns: Sequence[AnswerCosts]) -> dict[str, float]:
    """Medians."""
    return {field.name: statistics.median(getattr(turn, field.name) for turn in turns) for field in fields(AnswerCosts)}


def extrapolate(one_block: dict[str, float], two_blocks: dict[str, float]) -> dict[str, float]:
    """Memory of the whole model, from medians with one block of each kind and with two."""
    blocks = {"encode_ms": VISION_BLOCKS, "prefill_ms": LANGUAGE_LAYERS}
    total = dict(two_blocks)
    for name, count in blocks.items():
        total[name] = one_block[name] + (count - 1) * max(0.0, two_blocks[name] - one_block[name])
    total["first_token_ms"] = total["prepare_ms"] + total["encode_ms"] + total["prefill_ms"]
    return total


def compare_ways(rows: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Each way beside a snapshot at 27 %."""
    snapshot = rows[WAYS[0].name]
    return {
        name: {figure: round(row[figure] / snapshot[figure], 3) for figure in ("first_token_ms", "flops")}
        for name, row in rows.items()
    }


def report_of(qwen: QwenVL, rows: dict[str, dict[str, float]], answers: int) -> dict[str, Any]:
    return {
        "model": qwen.model_id,
        "dtype": str(qwen.model.dtype).removeprefix("torch."),
        "answers": answers,
        "ways": {name: {figure: round(value, 3) for figure, value in row.items()} for name, row in rows.items()},
        "against_snapshot": compare_ways(rows),
    }


def measure_bundled(device: str, answers: int) -> dict[str, Any]:
    qwen = speak_on(load_qwen(None, device=device))
    return report_of(qwen, {name: summary(turns) for name, turns in measure(qwen, answers).items()}, answers)


def measure_2b(device: str, dtype: torch.dtype, answers: int) -> dict[str, Any]:
    """Whole on CUDA; on the CPU times from one and two blocks, and operations of two."""
    sizes = [(VISION_BLOCKS, LANGUAGE_LAYERS)] if device.startswith("cuda") else [(1, 1), (2, 2)]
    measured = []
    for blocks in sizes:
        qwen = speak_on(qwen3_vl_2b(device, dtype, *blocks))
        measured.append({name: summary(turns) for name, turns in measure(qwen, answers).items()})
    rows = measured[0]
    if len(sizes) > 1:
        rows = {way.name: extrapolate(*(medians[way.name] for medians in measured)) for way in WAYS}
    report = report_of(qwen, rows, answers) | {"whole": len(sizes) == 1}
    ratios = report["against_snapshot"]
    report["targets"] = {
        f"first token of a memory <= {FIRST_TOKEN_TARGET:g}": ratios["memory 273"]["first_token_ms"]
        <= FIRST_TOKEN_TARGET,
        f"operations at 10 % <= {WORK_TARGET:g}": ratios["memory 102"]["flops"] <= WORK_TARGET,
    }
    return report


def table(report: dict[str, Any]) -> str:
    """As it is printed: one line a way."""
    lines = [f"{report['model']}, {report['dtype']}" + ("" if report.get("whole", True) else ", extrapolated")]
    lines.append(
        f"{'way':20}{'prefilled':>10}{'appended':>9}{'memory':>7}{'encode':>9}{'prefill':>9}{'first':>9}{'ratio':>7}"
    )
    for name, row in report["ways"].items():
        tokens = "".join(f"{row[key]:{width}.0f}" for key, width in COLUMNS.items())
        times = "".join(f"{row[key]:9.1f}" for key in ("encode_ms", "prefill_ms", "first_token_ms"))
        lines.append(f"{name:20}{tokens}{times}{report['against_snapshot'][name]['first_token_ms']:7.2f}")
    return "\n".join(lines)


COLUMNS = {"prefilled_tokens": 10, "appended_tokens": 9, "memory_tokens": 7}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=30, help="counted answers of each way")
    parser.add_argument("--answers-2b", type=int, default=6, help="the same, at the dimensions of Qwen3-VL-2B")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype-2b", default="bfloat16", choices=[*DTYPES])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "benchmark": "memory",
        "machine": machine() | {"device": arguments.device, "threads": torch.get_num_threads()},
        "bundled": measure_bundled(arguments.device, arguments.answers),
    }
    print(table(report["bundled"]), "\n")
    report["qwen3_vl_2b"] = measure_2b(arguments.device, DTYPES[arguments.dtype_2b], arguments.answers_2b)
    print(table(report["qwen3_vl_2b"]))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, report)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
