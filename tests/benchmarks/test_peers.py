"""The peers' table: medians of a way, ratios to programs that see as many tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers import arguments_of, ratios, row
from benchmarks.support.openvino_files import export, write_older
from tests.support.models import tiny_folder


def test_a_row_has_medians_and_the_largest_memory() -> None:
    runs = [{"tokens": 9, "peak_mib": peak, "answers": [{"first_cpu_s": float(peak)}]} for peak in (1, 2, 6)]
    assert row(runs) == {"tokens": 9, "first_cpu_s": 2.0, "peak_mib": 6}


def test_ratios_are_to_as_many_tokens_and_to_the_stock_model() -> None:
    rows = {
        way: {"first_cpu_s": first, "token_cpu_s": 1.0}
        for way, first in (("ours int8 27%", 1.0), ("llama.cpp Q4_0 27%", 4.0), ("openvino int8 10%", 3.0))
    } | {"transformers bfloat16": {"first_cpu_s": 10.0, "token_cpu_s": 2.0}}
    assert ratios(rows) == {
        "ours int8 27% ÷ llama.cpp Q4_0 27%": {"first": 0.25, "token": 1.0},
        "ours int8 27% ÷ transformers bfloat16": {"first": 0.1, "token": 0.5},
    }


def test_arguments_of_a_way(tmp_path: Path) -> None:
    assert arguments_of("ours int8 27%", tmp_path) == ["ours", "int8", "27%"]
    text, vision = str(tmp_path / "Q4_0.gguf"), str(tmp_path / "vision.gguf")
    assert arguments_of("llama.cpp Q4_0 10%", tmp_path) == ["llama.cpp", text, vision, "92"]
    assert arguments_of("openvino int8 27%", tmp_path) == ["openvino", "640x384", "0"]
    assert arguments_of("openvino int8 27% pruned", tmp_path) == ["openvino", "1280x736", "73"]


def test_a_model_as_an_older_transformers_reads_it(tmp_path: Path) -> None:
    model, older = tiny_folder(tmp_path / "model", "qwen3_vl"), tmp_path / "older"
    older.mkdir()
    write_older(model, older)
    text = json.loads((older / "config.json").read_text())["text_config"]
    rope = json.loads((model / "config.json").read_text())["text_config"]["rope_parameters"]
    assert (text["rope_scaling"]["mrope_section"], text["rope_theta"]) == (rope["mrope_section"], rope["rope_theta"])
    assert {path.name for path in model.iterdir()} <= {path.name for path in older.iterdir()}
    for name in ("tokenizer_config", "preprocessor_config", "video_preprocessor_config"):
        assert json.loads((older / f"{name}.json").read_text())["processor_class"] == "Qwen3VLProcessor"


def test_an_export_that_fails_names_the_packages(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model", "qwen3_vl")
    with pytest.raises(RuntimeError, match="needs pip install openvino-genai optimum-intel"):
        export("/bin/false", model, tmp_path / "exported")
