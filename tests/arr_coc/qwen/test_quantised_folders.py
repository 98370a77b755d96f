"""Folders as the usual tools write quantised weights: each loads or is refused in one line, and its size is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from arr_coc.errors import ModelError
from arr_coc.qwen import quantisation
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.memory_estimate import ModelSpec
from stream.config import Config
from stream.extensions.doctor import model_fit
from tests.support.models import FP8_SETTINGS, quantise, tiny_folder

Tensors = dict[str, torch.Tensor]


def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def awq(name: str, rows: int, cols: int) -> Tensors:
    scales = zeros(cols // 32, rows, dtype=torch.float16)
    return {
        f"{name}.qweight": zeros(cols, rows // 8),
        f"{name}.qzeros": zeros(cols // 32, rows // 8),
        f"{name}.scales": scales,
    }


def gptq(name: str, rows: int, cols: int) -> Tensors:
    return awq(name, rows, cols) | {f"{name}.qweight": zeros(cols // 8, rows), f"{name}.g_idx": zeros(cols)}


def packed_int4(name: str, rows: int, cols: int) -> Tensors:
    scale = zeros(rows, cols // 32, dtype=torch.bfloat16)
    shape = torch.tensor([rows, cols])
    return {
        f"{name}.weight_packed": zeros(rows, cols // 8),
        f"{name}.weight_scale": scale,
        f"{name}.weight_shape": shape,
    }


def nvfp4(name: str, rows: int, cols: int) -> Tensors:
    scale = zeros(rows, cols // 16, dtype=torch.float8_e4m3fn)
    packed, global_scale = zeros(rows, cols // 2, dtype=torch.uint8), torch.ones(1)
    return {f"{name}.weight_packed": packed, f"{name}.weight_scale": scale, f"{name}.weight_global_scale": global_scale}


def nvfp4_of_modelopt(name: str, rows: int, cols: int) -> Tensors:
    scale, global_scale = zeros(rows, cols // 16, dtype=torch.float8_e4m3fn), torch.tensor(1.0)
    weight = zeros(rows, cols // 2, dtype=torch.uint8)
    return {
        f"{name}.weight": weight,
        f"{name}.weight_scale": scale,
        f"{name}.weight_scale_2": global_scale,
        f"{name}.input_scale": global_scale.clone(),
    }


def mxfp4(name: str, rows: int, cols: int) -> Tensors:
    scale = zeros(rows, cols // 32, dtype=torch.uint8)
    return {f"{name}.weight_packed": zeros(rows, cols // 2, dtype=torch.uint8), f"{name}.weight_scale": scale}


def mxfp4_blocks(name: str, rows: int, cols: int) -> Tensors:
    scales = zeros(rows, cols // 32, dtype=torch.uint8)
    return {f"{name}_blocks": zeros(rows, cols // 32, 16, dtype=torch.uint8), f"{name}_scales": scales}


def nf4(name: str, rows: int, cols: int) -> Tensors:
    weight, state = zeros(rows * cols // 2, 1, dtype=torch.uint8), zeros(90, dtype=torch.uint8)
    return {
        f"{name}.weight": weight,
        f"{name}.weight.absmax": zeros(rows * cols // 64, dtype=torch.uint8),
        f"{name}.weight.quant_map": zeros(16, dtype=torch.float32),
        f"{name}.weight.nested_absmax": zeros(1, dtype=torch.float32),
        f"{name}.weight.nested_quant_map": zeros(256, dtype=torch.float32),
        f"{name}.weight.quant_state.bitsandbytes__nf4": state,
    }


def llm_int8(name: str, rows: int, cols: int) -> Tensors:
    return {
        f"{name}.weight": zeros(rows, cols, dtype=torch.int8),
        f"{name}.SCB": zeros(rows, dtype=torch.float32),
        f"{name}.weight_format": zeros(1, dtype=torch.uint8),
    }


def mlx(bits: int) -> Callable[[str, int, int], Tensors]:
    def pack(name: str, rows: int, cols: int) -> Tensors:
        scales = zeros(rows, cols // 32, dtype=torch.bfloat16)
        weight = zeros(rows, cols * bits // 32, dtype=torch.uint32)
        return {f"{name}.weight": weight, f"{name}.scales": scales, f"{name}.biases": scales.clone()}

    return pack


def settings(method: str, **options: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method, **options}}


def groups(kind: str, layout: str, size: int = 32, strategy: str = "group") -> dict[str, Any]:
    weights = {"num_bits": 4, "type": kind, "group_size": size, "strategy": strategy, "symmetric": True}
    return settings(
        "compressed-tensors",
        format=layout,
        quantization_status="compressed",
        config_groups={"group_0": {"targets": ["Linear"], "weights": weights}},
        ignore=["re:.*visual.*", "lm_head"],
    )


METHODS: dict[str, tuple[Callable[[str, int, int], Tensors], dict[str, Any], str]] = {
    "AWQ": (awq, settings("awq", bits=4, group_size=32, version="gemm", zero_point=True), "pip install .*gptqmodel"),
    "GPTQ": (gptq, settings("gptq", bits=4, group_size=32), "pip install gptqmodel optimum"),
    "compressed-tensors": (packed_int4, groups("int", "pack-quantized"), "pip install compressed-tensors"),
    "NVFP4": (nvfp4, groups("float", "nvfp4-pack-quantized", 16, "tensor_group"), "pip install compressed-tensors"),
    "NVFP4 of Model Optimizer": (nvfp4_of_modelopt, settings("modelopt", quant_algo="NVFP4"), "modelopt, which is not"),
    "MXFP4": (mxfp4, groups("float", "mxfp4-pack-quantized"), "pip install compressed-tensors"),
    "MXFP4 in blocks": (mxfp4_blocks, settings("mxfp4"), "by mxfp4, which is not supported; take"),
    "bitsandbytes, 4 bits": (nf4, settings("bitsandbytes", load_in_4bit=True), "pip install .*bitsandbytes"),
    "bitsandbytes, 8 bits": (llm_int8, settings("bitsandbytes", load_in_8bit=True), "pip install .*bitsandbytes"),
    "MLX, 4 bits": (mlx(4), {"quantization": {"group_size": 32, "bits": 4}}, "by MLX, which is not supported; take"),
    "MLX, 8 bits": (mlx(8), {"quantization": {"group_size": 32, "bits": 8}}, "by MLX, which is not supported; take"),
}
"""Method → tensors of a projection [rows, cols], additions to `config.json`, and the message if no package is there."""


def quantised_folder(folder: Path, method: str) -> tuple[Path, ModelSpec]:
    """A tiny model whose decoder's projections have the shapes of a method, and the specification of the plain one."""
    pack, changes, _ = METHODS[method]
    plain = ModelSpec.read(tiny_folder(folder), "plain")
    weights: Tensors = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        is_projection = "language_model.layers" in name and name.endswith("proj.weight")
        weights |= pack(name.removesuffix(".weight"), *weight.shape) if is_projection else {name: weight.bfloat16()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx" if "MLX" in method else "pt"})
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"} | changes))
    return folder, plain


def config_of(folder: Path) -> Config:
    return Config.model_validate({"source": "x.mp4", "answer": {"model": str(folder), "device": "cpu"}})


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_named_and_its_size_is_known(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, plain = quantised_folder(tmp_path / "tiny", method)
    monkeypatch.setattr(quantisation, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=METHODS[method][2]) as refused:
        load_qwen(folder, device="cpu")
    assert "\n" not in str(refused.value)
    spec, _ = model_fit.facts_of(config_of(folder))
    assert spec is not None
    assert spec.parameters == plain.parameters
    size_bytes = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert spec.checkpoint_bytes == size_bytes
    check = model_fit.model(config_of(folder))
    size = f"{plain.parameters / 1e6:,.1f} M parameters, {model_fit.size_text(size_bytes)}"
    assert (check.state, check.found) == ("broken", f"{refused.value.problem} ({size})")
    assert check.remedy == refused.value.remedy
    assert "weights" in model_fit.memory(config_of(folder)).found


@pytest.mark.skipif(find_spec("compressed_tensors") is None, reason="compressed-tensors is not installed")
@pytest.mark.parametrize("method", ["compressed-tensors", "NVFP4", "MXFP4"])
def test_compressed_tensors_are_expanded_on_a_cpu(tmp_path: Path, method: str) -> None:
    folder, plain = quantised_folder(tmp_path / "tiny", method)
    model = load_qwen(folder, device="cpu").model
    assert sum(weight.numel() for weight in model.parameters()) == plain.parameters
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_fp8_is_expanded_on_a_cpu_and_its_size_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    plain = ModelSpec.read(folder, "plain")
    quantise(folder, **FP8_SETTINGS)
    spec = ModelSpec.read(folder, "tiny", quantised=True)
    assert spec.parameters == plain.parameters
    assert spec.checkpoint_bytes < 2 * plain.parameters
    monkeypatch.setattr(quantisation, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="quantised by fp8, for which accelerate is not installed; pip install"):
        load_qwen(folder, device="cpu")


def test_a_gguf_file_is_named_with_its_size(tmp_path: Path) -> None:
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"GGUF" + bytes(10))
    (tmp_path / "mmproj-F16.gguf").touch()
    with (tmp_path / "mmproj-F16.gguf").open("wb") as file:
        file.truncate(1_200_000_000)
    check = model_fit.model(config_of(tmp_path))
    assert check.state == "broken"
    assert check.found.endswith("holds a GGUF file, which is not read (1.2 GB)")
    assert check.remedy is not None
    assert "have llama.cpp serve it" in check.remedy
