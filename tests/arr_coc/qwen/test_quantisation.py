"""Quantised folders: what each method needs, and one verdict of doctor and loading."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from arr_coc.errors import ModelError
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen import loading, quantisation
from arr_coc.qwen.checkpoint import check_folder
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.memory_estimate import MemoryEstimate, ModelSpec, Workload
from arr_coc.qwen.quantisation import METHODS
from stream.config import Config
from stream.extensions.doctor import model_fit
from tests.support.models import FP8_SETTINGS, quantise, tiny_folder, tiny_model

ROOT = Path(__file__).resolve().parents[3]

METHODS_OF_TRANSFORMERS = sorted({name.removesuffix("_4bit").removesuffix("_8bit") for name in AUTO_QUANTIZER_MAPPING})

KINDS = [*METHODS_OF_TRANSFORMERS, "modelopt", "own", ""]

MODULES = {"optimum_quanto": "optimum.quanto", "auto_round": "auto_round", "spqr": "spqr_quant"}
"""Modules whose question in transformers has another name."""

accelerate = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")


def configure(folder: Path, **values: Any) -> Path:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | values))
    return folder


def doctor(folder: Path) -> tuple[str, str]:
    config = Config.model_validate({"source": "x.mp4", "answer": {"model": str(folder), "device": "cpu"}})
    check = model_fit.model(config)
    return check.state, check.found


@pytest.mark.parametrize("method", [method for method in METHODS if method in METHODS_OF_TRANSFORMERS])
def test_the_modules_are_those_that_transformers_asks_for(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = AUTO_QUANTIZER_MAPPING.get(method) or AUTO_QUANTIZER_MAPPING[f"{method}_4bit"]
    module = importlib.import_module(kind.__module__)
    modules = set()

    def question(name: str) -> Any:
        def available(*_: Any, **__: Any) -> bool:
            modules.add(MODULES.get(name, name))
            return True

        return available

    for name in vars(module):
        if (of := re.fullmatch(r"is_(\w+)_available", name)) and not of[1].startswith("torch"):
            monkeypatch.setattr(module, name, question(of[1]))
    monkeypatch.setattr(module, "is_torch_cuda_available", lambda: True, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    quantizer = kind.__new__(kind)
    quantizer.quantization_config = SimpleNamespace(dequantize=False, use_optimized_inference=False)
    quantizer.pre_quantized = True
    with contextlib.suppress(
        ImportError, AttributeError, NameError, TypeError
    ):  # versions of packages that are not here
        quantizer.validate_environment(device_map=None)
    assert modules <= set(METHODS[method].modules)
    if method not in ("gptq", "torchao", "hqq"):  # which give up before the last question, or ask nothing
        assert modules == set(METHODS[method].modules)


@pytest.mark.parametrize("packages", ["absent", "present"])
@pytest.mark.parametrize("method", KINDS)
def test_doctor_and_a_run_agree(tmp_path: Path, method: str, packages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = configure(tiny_folder(tmp_path / "tiny"), quantization_config={"quant_method": method})
    loaded = []

    def load(*_: Any, **__: Any) -> Any:
        loaded.append(method)
        return tiny_model(), {"mismatched_keys": [], "missing_keys": [], "unexpected_keys": []}

    monkeypatch.setattr(quantisation, "find_spec", lambda name: object() if packages == "present" else None)
    monkeypatch.setattr("transformers.AutoModelForImageTextToText.from_pretrained", load)
    status, detail = doctor(folder)
    if status == "works":
        load_qwen(folder, device="cpu")
        assert loaded
        return
    with pytest.raises(ModelError) as caught:
        load_qwen(folder, device="cpu")
    assert detail.startswith(f"{caught.value.problem} (")
    assert not loaded
    assert f"quantised by {method or 'an unnamed method'}, " in detail


def test_methods_of_a_cpu_are_loaded_if_their_packages_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantisation, "find_spec", lambda name: object())
    for method, requirements in METHODS.items():
        folder = configure(tiny_folder(tmp_path / method), quantization_config={"quant_method": method})
        assert doctor(folder)[0] == ("broken" if requirements.cuda_only else "works")


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "MLX"),
        ({"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4}}, "MLX"),
    ],
)
def test_names_of_methods(config: dict[str, Any], method: str) -> None:
    assert quantisation.quantisation_of(config) == method


def test_the_older_file_of_modelopt(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    (folder / "hf_quant_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"quantised by modelopt, which is not supported; .* such as vLLM \(--api\)"):
        check_folder(folder, "tiny")


def test_a_submodule_of_an_absent_package() -> None:
    with pytest.raises(ModelError, match=r"for which .*optimum-quanto .*not installed"):
        quantisation.check_quantisation("quanto", "tiny")


@accelerate
def test_fp8_answers_on_a_cpu_in_one_dtype(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    plain = load_qwen(folder)
    quantise(folder, **FP8_SETTINGS)
    qwen = load_qwen(folder, device="cpu")
    assert {parameter.dtype for parameter in qwen.model.parameters()} == {torch.float32}
    for name, weight in qwen.model.state_dict().items():
        torch.testing.assert_close(weight, plain.model.state_dict()[name], atol=0.02, rtol=0.05)
    picture = np.zeros((96, 96, 3), np.uint8)
    assert ARRCOCQwen(qwen).generate(picture, "what?", max_tokens=3).text is not None


@pytest.mark.skipif(importlib.util.find_spec("compressed_tensors") is None, reason="compressed-tensors is absent")
def test_compressed_tensors_answer_on_a_cpu_in_one_dtype(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    quantise(
        folder,
        "compressed-tensors",
        "weight_scale",
        format="float-quantized",
        quantization_status="compressed",
        config_groups={"group_0": {"targets": ["Linear"], "weights": weights}},
        ignore=["lm_head", "re:.*visual.*"],
    )
    qwen = load_qwen(folder, device="cpu")
    assert {parameter.dtype for parameter in qwen.model.parameters()} == {torch.float32}
    ARRCOCQwen(qwen).generate(np.zeros((96, 96, 3), np.uint8), "what?", max_tokens=3)


@accelerate
def test_accelerate_stays_visible_for_a_quantised_model(tmp_path: Path) -> None:
    """In a separate process, because transformers remembers at its import what is absent."""
    folder = tiny_folder(tmp_path / "tiny")
    quantise(folder, **FP8_SETTINGS)
    code = """
import sys
from arr_coc.qwen.deferred_imports import deferred_imports
with deferred_imports(None, sys.argv[1]):
    from arr_coc.qwen.loading import load_qwen
    load_qwen(sys.argv[1], device="cpu")
"""
    process = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, cwd=ROOT, timeout=600, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]


def test_expanded_weights_are_estimated_as_such(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    quantise(folder, **FP8_SETTINGS)
    spec = ModelSpec.read(folder, "tiny")
    load = Workload(10, 5)
    on_cuda, on_cpu = (MemoryEstimate.of(spec.for_device(cuda=cuda), "float32", load) for cuda in (True, False))
    assert on_cuda.weights == spec.checkpoint_bytes
    assert on_cpu.weights == 4 * spec.parameters


def test_packed_weights_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantisation, "find_spec", lambda name: object())
    folder = tiny_folder(tmp_path / "tiny")
    spec = ModelSpec.read(folder, "tiny")
    checkpoint = check_folder(folder, "tiny")
    groups = {"group_0": {"weights": {"num_bits": 4}}}
    config = dict(checkpoint.config) | {
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}
    }
    name = next(name for name in checkpoint.tensors if name.endswith("gate_proj.weight"))
    rows, cols = checkpoint.tensors[name].shape
    tensors = dict(checkpoint.tensors)
    del tensors[name]
    tensors[f"{name}_packed"] = type(checkpoint.tensors[name])((rows, cols // 8), "I32")
    packed = type(checkpoint)(checkpoint.family, config, tensors, "compressed-tensors")
    assert ModelSpec.of(packed, "tiny").parameters == spec.parameters


def test_the_library_of_a_device_map_takes_cuda_for_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantisation, "find_spec", lambda name: object())
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: None)
    folder = configure(tiny_folder(tmp_path / "tiny"), quantization_config={"quant_method": "vptq"})
    with pytest.raises(ModelError, match="needs a CUDA device"):
        load_qwen(folder, device="cpu")
    with pytest.raises(ModelError, match="pip install accelerate"):
        load_qwen(folder, device_map={"model": "cpu", "lm_head": "cpu"})
