"""The peers' table: medians of a way, ratios to programs that see as many tokens."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers import arguments_of, ratios, row


def test_a_row_has_medians_and_the_largest_memory() -> None:
    runs = [{"tokens": 9, "peak_mib": peak, "answers": [{"first_cpu_s": float(peak)}]} for peak in (1, 2, 6)]
    assert row(runs) == {"tokens": 9, "first_cpu_s": 2.0, "peak_mib": 6}


def test_ratios_are_to_as_many_tokens_and_to_the_stock_model() -> None:
    rows = {
        way: {"first_cpu_s": first, "token_cpu_s": 1.0}
        for way, first in (("ours int8 27%", 1.0), ("llama.cpp Q4_0 27%", 4.0), ("llama.cpp Q4_0 10%", 3.0))
    } | {"transformers bfloat16": {"first_cpu_s": 10.0, "token_cpu_s": 2.0}}
    assert ratios(rows) == {
        "ours int8 27% ÷ llama.cpp Q4_0 27%": {"first": 0.25, "token": 1.0},
        "ours int8 27% ÷ transformers bfloat16": {"first": 0.1, "token": 0.5},
    }


def test_arguments_of_a_way(tmp_path: Path) -> None:
    assert arguments_of("ours int8 27%", tmp_path) == ["ours", "int8", "27%"]
    text, vision = str(tmp_path / "Q4_0.gguf"), str(tmp_path / "vision.gguf")
    assert arguments_of("llama.cpp Q4_0 10%", tmp_path) == ["llama.cpp", text, vision, "92"]
