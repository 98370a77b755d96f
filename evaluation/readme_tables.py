"""Tables of the README, made of the committed results. Each takes all rows of a rule, hits and misses alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.public.estimate import BYTES_A_SECOND, FLOPS_A_SECOND, MODELS

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"

Row = tuple[str, ...]

MODEL_HEAD: Row = ("model", "runs on", "first token", "each further", "memory", "how known")
SPEED_HEAD: Row = ("measurement", "program", "condition", "result")

CPU = "2 cores, AMD EPYC"
SHOWN = 0.27
SCENES = {
    "still": "a still picture",
    "noise": "a still picture with a sensor's noise",
    "1 %": "something small moves all the time",
    "5 %": "something larger moves",
    "everything": "everything moves",
    "typed, 1 %": "a typed question while something moves",
}
OTHERS = ("openvino", "transformers", "llama.cpp")


def _results(program: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((BENCHMARKS / f"{program}.json").read_text("utf-8"))
    return results


def _short(seconds: float) -> str:
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s"


def models() -> list[Row]:
    """The bundled model, every form of Qwen3-VL-2B whose whole answer was measured, at 27 % of the tokens, and
    estimates for a GPU."""
    whole = {way["way"]: way for way in _results("whole_model")["ways"]}
    tiny = _results("encode")["answers"]
    rows: list[Row] = [
        (
            f"bundled `{_results('encode')['model']['name']}`: drawn scenes only",
            "2 cores",
            _short((tiny["encode_ms"] + tiny["prefill_ms"]) / 1000),
            _short(tiny["decode_ms"] / tiny["text_tokens"] / 1000),
            "–",
            "measured, wall",
        )
    ]
    for label, name in (("as stock transformers runs it, all tokens", "stock"), ("", "sparse 27%")):
        way = whole[name]
        rows.append(
            (
                f"Qwen3-VL-2B, bfloat16{', ' if label else ''}{label}",
                CPU,
                _short(way["first_token_ms"] / 1000),
                _short(1 / way["tokens_hz"]),
                f"{way['peak_mib'] / 1024:.1f} GiB",
                "measured †, wall",
            )
        )
    for name, way in _results("peers_two_threads")["ways"].items():
        if name.startswith("ours") and "27%" in name:
            rows.append(
                (
                    f"Qwen3-VL-2B, {name.split()[1]}",
                    "2 cores, Xeon with AMX",
                    _short(way["first_wall_s"]),
                    _short(way["token_wall_s"]),
                    f"{way['peak_mib'] / 1024:.1f} GiB",
                    "measured †, wall",
                )
            )
    for size in MODELS:
        tokens = round(SHOWN * 920)
        first_s = (size.encode(tokens) + size.prefill(tokens + 30)) / FLOPS_A_SECOND
        token_s = size.weights_gb * 1e9 / BYTES_A_SECOND
        rows.append(
            (
                f"Qwen3-VL-{size.name}, bfloat16",
                "a GPU of 24 GB",
                _short(first_s),
                _short(token_s),
                f"{size.weights_gb:g} GB of weights",
                "*estimate*",
            )
        )
    return rows


def speed() -> list[Row]:
    """Every scene of `memory`; of `whole_model` the default way, `sparse`, at every budget; of `peers` every other way
    at our 27 % of the tokens, or with all of them. Bold: slower than the other."""
    rows: list[Row] = []
    for name, scene in _results("memory")["2b"]["scenes"].items():
        ways = scene["ways"]
        rows.append(
            (
                f"{'first token' if not rows else '…'} with the visual memory ÷ without: {SCENES[name]}",
                "`memory`",
                f"{scene['changed_percent']:.0f} % of tiles changed",
                _ratio(ways["memory, idle"]["first_token_ms"], ways["snapshot"]["first_token_ms"]),
            )
        )
    whole = _results("whole_model")
    first_ms = {way["way"]: way["first_token_ms"] for way in whole["ways"]}
    for name, milliseconds in first_ms.items():
        if name.startswith("sparse"):
            rows.append(
                (
                    "… without it ÷ stock transformers, bfloat16",
                    "`whole_model`",
                    f"{name.split()[1].replace('%', ' %')} of the tokens",
                    _ratio(milliseconds / 1000, first_ms["stock"] / 1000, "s"),
                )
            )
    return rows + _peers(_results("peers")["ways"])


def _peers(ways: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    ours = ways["ours int8 27%"]["first_cpu_s"]
    rows: list[Row] = []
    for name, way in ways.items():
        if name.startswith(OTHERS) and "10%" not in name:
            rows.append(
                (
                    f"… without it, int8 ÷ {name.replace('%', ' %')}",
                    "`peers`",
                    f"{ways['ours int8 27%']['tokens']} tokens, there {way['tokens']}; processor time",
                    _ratio(ours, way["first_cpu_s"], "s"),
                )
            )
    return rows


def _ratio(ours: float, other: float, unit: str = "ms") -> str:
    digits = 0 if unit == "ms" else 1
    text = f"{ours / other:.2f} ({ours:.{digits}f} ÷ {other:.{digits}f} {unit})"
    return f"**{text}**" if ours > other else text
