"""Cost of an answer: every way of encoding at 100, 27 and 10 % of the tokens, beside stock transformers.

    python -m benchmarks.answer [--rounds N] [--device cuda] [--dtype bfloat16] [--out FILE]

Pictures of 1024×1024 from a drawn stream, five a second, are answered with twelve tokens, by turns in every way: the
bundled model, and Qwen3-VL-2B's dimensions with random weights. On a CPU the latter is measured with one and with two
blocks of vision and of language, and the difference taken as often as the real model has blocks. Times begin with the
picture in ordinary memory: image processor, or texture and allocation, included. Peak memory is what answering
adds to a process that has loaded the model, each way in a separate process.

Targets, against the stock model, bundled weights, CPU: 4 times the answers a second at 273 tokens, a fifth of the time
to the first token, less memory.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.qwen.loading import DTYPES, load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.untrained import LANGUAGE_LAYERS, VISION_BLOCKS, qwen3_vl_2b
from benchmarks.support.answer_ways import (
    TEXT_TOKENS,
    WAYS,
    AnswerTimes,
    AnswerWay,
    ArrCocWay,
    Stock,
    peak_mib,
    pictures,
    plot,
    speak_on,
    stock_processor,
)
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results" / "answer.json"
WARM_UP = 2
"""Turns that are not counted; the first one encodes everything."""

ANSWERS_TARGET, FIRST_TOKEN_TARGET = 4.0, 5.0
GPU_TARGETS_MS = {"first_token_ms p50": 10.0, "first_token_ms p99": 15.0, "answer_ms p50": 35.0}
TOKENS_TARGET_HZ = 600.0
JUDGED = "sparse 273"


def all_ways(qwen: QwenVL) -> list[AnswerWay]:
    return [Stock(qwen, stock_processor()), *(ArrCocWay(qwen, encode, tokens) for encode, tokens in WAYS)]


def measure(ways: Sequence[AnswerWay], rounds: int) -> dict[str, list[AnswerTimes]]:
    """The ways by turns, so that what else the machine does falls on all of them."""
    runs: dict[str, list[AnswerTimes]] = {way.name: [] for way in ways}
    for index, picture in enumerate(pictures(rounds + WARM_UP)):
        for way in ways:
            runs[way.name].append(way.take(picture, index))
    return {name: turns[WARM_UP:] for name, turns in runs.items()}


def summary(turns: Sequence[AnswerTimes]) -> dict[str, float]:
    """Medians; of times to the first token, and of answers, the 99th percentile too."""
    figures = {
        field.name: statistics.median(getattr(turn, field.name) for turn in turns) for field in fields(AnswerTimes)
    }
    for name in ("first_token_ms", "answer_ms"):
        figures[f"{name}_p99"] = float(np.percentile([getattr(turn, name) for turn in turns], 99))
    return figures


def row(way: AnswerWay, figures: dict[str, float], text_tokens: int) -> dict[str, Any]:
    """One line of the table."""
    return {
        "way": way.name,
        "visual_tokens": way.visual_tokens,
        **{name: round(value, 3) for name, value in figures.items()},
        "answers_hz": round(1e3 / figures["answer_ms"], 3),
        "tokens_hz": round(1e3 * (text_tokens - 1) / figures["decode_ms"], 1),
    }


def extrapolate(one_block: dict[str, float], two_blocks: dict[str, float]) -> dict[str, float]:
    """Times of the whole model, from medians with one block of each kind and with two."""
    block_ms = {name: max(0.0, two_blocks[name] - one_block[name]) for name in one_block}
    total = {
        "prepare_ms": one_block["prepare_ms"],
        "encode_ms": one_block["encode_ms"] + (VISION_BLOCKS - 1) * block_ms["encode_ms"],
        "prefill_ms": one_block["prefill_ms"] + (LANGUAGE_LAYERS - 1) * block_ms["prefill_ms"],
        "decode_ms": one_block["decode_ms"] + (LANGUAGE_LAYERS - 1) * block_ms["decode_ms"],
    }
    total["first_token_ms"] = total["prepare_ms"] + total["encode_ms"] + total["prefill_ms"]
    total["answer_ms"] = total["first_token_ms"] + total["decode_ms"]
    return total


def compare(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Each way against the stock model."""
    stock = rows[0]
    return {
        entry["way"]: {
            "answers": round(entry["answers_hz"] / stock["answers_hz"], 2),
            "first_token": round(stock["first_token_ms"] / entry["first_token_ms"], 2),
            "tokens": round(entry["tokens_hz"] / stock["tokens_hz"], 2),
        }
        for entry in rows[1:]
    }


def measure_bundled(device: str, dtype: str, rounds: int) -> dict[str, Any]:
    qwen = speak_on(load_qwen(None, device=device, dtype=dtype))
    ways = all_ways(qwen)
    rows = [
        row(way, summary(turns), TEXT_TOKENS) for way, turns in zip(ways, measure(ways, rounds).values(), strict=True)
    ]
    for entry in rows:
        entry["peak_mib"] = peak_mib(entry["way"], device, dtype)
    ratios = compare(rows)
    target_row = next(entry for entry in rows if entry["way"] == JUDGED)
    return {
        "model": qwen.model_id,
        "dtype": str(qwen.model.dtype).removeprefix("torch."),
        "ways": rows,
        "against_stock": ratios,
        "targets": {
            f"answers a second, {ANSWERS_TARGET:g} times": ratios[JUDGED]["answers"] >= ANSWERS_TARGET,
            f"first token, {FIRST_TOKEN_TARGET:g} times sooner": ratios[JUDGED]["first_token"] >= FIRST_TOKEN_TARGET,
            "less memory": None if target_row["peak_mib"] is None else target_row["peak_mib"] < rows[0]["peak_mib"],
        },
    }


def measure_2b(device: str, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Whole on CUDA; on the CPU from one and two blocks."""
    sizes = [(VISION_BLOCKS, LANGUAGE_LAYERS)] if device.startswith("cuda") else [(1, 1), (2, 2)]
    measured = []
    for blocks in sizes:
        ways = all_ways(speak_on(qwen3_vl_2b(device, dtype, *blocks)))
        measured.append({name: summary(turns) for name, turns in measure(ways, rounds).items()})
    rows = []
    for way in ways:
        figures = [entry[way.name] for entry in measured]
        rows.append(row(way, figures[0] if len(figures) == 1 else extrapolate(*figures), TEXT_TOKENS))
    report = {
        "model": "Qwen3-VL-2B's dimensions, random weights",
        "dtype": str(dtype).removeprefix("torch."),
        "whole": len(sizes) == 1,
        "ways": rows,
        "against_stock": compare(rows),
    }
    if len(sizes) == 1:
        report["targets"] = gpu_targets(next(entry for entry in rows if entry["way"] == JUDGED))
    return report


def gpu_targets(figures: dict[str, Any]) -> dict[str, bool]:
    """Of an H200-class GPU in bfloat16."""
    keys = {"first_token_ms p50": "first_token_ms", "first_token_ms p99": "first_token_ms_p99"}
    targets = {
        f"{name} <= {most:g}": figures[keys.get(name, "answer_ms")] <= most for name, most in GPU_TARGETS_MS.items()
    }
    return targets | {f"tokens a second >= {TOKENS_TARGET_HZ:g}": figures["tokens_hz"] >= TOKENS_TARGET_HZ}


def table(report: dict[str, Any]) -> str:
    """As it is printed: one line a way."""
    lines = [f"{report['model']}, {report['dtype']}" + ("" if report.get("whole", True) else ", extrapolated")]
    lines.append(
        f"{'way':16}{'tokens':>7}{'prepare':>9}{'encode':>9}{'prefill':>9}{'first':>9}{'answer':>9}{'tok/s':>8}"
    )
    for entry in report["ways"]:
        times = (entry[f"{name}_ms"] for name in ("prepare", "encode", "prefill", "first_token", "answer"))
        lines.append(
            f"{entry['way']:16}{entry['visual_tokens']:7}"
            + "".join(f"{t:9.1f}" for t in times)
            + f"{entry['tokens_hz']:8.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="counted answers of each way")
    parser.add_argument("--rounds-2b", type=int, default=3, help="the same, at the dimensions of Qwen3-VL-2B")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto", choices=["auto", *DTYPES], help="of the bundled model")
    parser.add_argument("--dtype-2b", default="bfloat16", choices=[*DTYPES])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "benchmark": "answer",
        "machine": machine() | {"device": arguments.device, "threads": torch.get_num_threads()},
    }
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "bundled": lambda: measure_bundled(arguments.device, arguments.dtype, arguments.rounds),
        "qwen3_vl_2b": lambda: measure_2b(arguments.device, DTYPES[arguments.dtype_2b], arguments.rounds_2b),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        report[name] = part()
        print(table(report[name]), "\n")
        write_report(arguments.out, report)
    plot(report, arguments.out.with_suffix(".png"))
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
