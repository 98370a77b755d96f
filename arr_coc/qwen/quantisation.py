"""Methods by which a checkpoint's weights may be quantised: needs of each, and devices that keep it packed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from arr_coc.errors import ModelError

Place = Literal["nowhere", "cpu", "everywhere"]

SmallDtype = Literal["int8", "int4"]
SMALL_DTYPES: tuple[SmallDtype, ...] = ("int8", "int4")
"""Dtypes to which weights are quantised as they are loaded (`small_weights/`)."""


@dataclass(frozen=True, slots=True)
class QuantisationMethod:
    """`modules` that transformers needs for it. `expanded`: devices on which the weights are expanded to one dtype as
    they are loaded, because no product takes them as they are. `cuda_only`: a CPU does not take them at all."""

    modules: tuple[str, ...]
    expanded: Place = "nowhere"
    cuda_only: bool = False

    def expands_on(self, *, cuda: bool) -> bool:
        """Return True if its weights are expanded as they are loaded to such a device."""
        return self.expanded == "everywhere" or (self.expanded == "cpu" and not cuda)


METHODS = {
    "aqlm": QuantisationMethod(("accelerate", "aqlm")),
    "auto-round": QuantisationMethod(("auto_round",)),
    "awq": QuantisationMethod(("accelerate", "gptqmodel")),
    "bitsandbytes": QuantisationMethod(("accelerate", "bitsandbytes")),
    "compressed-tensors": QuantisationMethod(("compressed_tensors",), expanded="everywhere"),
    "fbgemm_fp8": QuantisationMethod(("accelerate", "fbgemm_gpu"), cuda_only=True),
    "fp8": QuantisationMethod(("accelerate",), expanded="cpu"),
    "gptq": QuantisationMethod(("gptqmodel", "optimum")),
    "hqq": QuantisationMethod(("hqq",)),
    "mxfp8": QuantisationMethod(("accelerate",), expanded="cpu"),
    "quanto": QuantisationMethod(("accelerate", "optimum.quanto")),
    "quark": QuantisationMethod(("quark",)),
    "spqr": QuantisationMethod(("accelerate", "spqr_quant"), cuda_only=True),
    "torchao": QuantisationMethod(("torchao",)),
    "vptq": QuantisationMethod(("accelerate", "vptq"), cuda_only=True),
}
"""By the name in `quantization_config`. Left out: methods that fetch kernels from the hub (eetq, metal), that ask for a
device map (higgs, fp_quant), that no Qwen-VL model is stored by (gguf, mxfp4, bitnet), and those that transformers
does not read (modelopt, MLX)."""

_PACKAGES = {"optimum.quanto": "optimum-quanto", "spqr_quant": "spqr_quant[gpu]", "quark": "amd-quark"}
"""Names of packages that are not their module's."""

MODELOPT_FILE = "hf_quant_config.json"
"""File in which NVIDIA's Model Optimizer describes its quantisation, in older versions alone."""

MLX = "MLX"

SIDE_TENSORS = re.compile(
    r"(?:^|[._])(?:scales?|zeros|qzeros|g_idx|weight_scale(?:_inv|_2)?|weight_zero_point|weight_shape|"
    r"weight_global_scale|input_scale|input_global_scale|absmax|nested_absmax|quant_map|nested_quant_map|SCB|"
    r"weight_format|biases|[kv]_scale)\Z|\.quant_state\."
)
"""Names of tensors that belong to quantised weights, such as their scales, and are no parameters."""

PACKED_BITS = 4
"""Bits of packed weights if the configuration names none, as of bitsandbytes, NVFP4 and MXFP4."""

_PACKED = re.compile(r"\.(?:qweight|weight_packed)\Z|_blocks\Z")
"""Names of weights of which several are in an element."""

_REMEDY = "take the model that is not quantised, or have a server answer for it, such as vLLM (--api)"


def quantisation_of(config: Mapping[str, Any], folder: Path | None = None) -> str | None:
    """Return the method by which the weights of a `config.json` were quantised; None for weights that are not."""
    settings = config.get("quantization_config")
    if not isinstance(settings, dict):
        if folder is not None and (folder / MODELOPT_FILE).is_file():
            return "modelopt"
        if isinstance(config.get("quantization"), dict):
            return MLX
        return None
    bits = settings.get("load_in_4bit") or settings.get("load_in_8bit")
    mlx = {"group_size", "bits"} <= settings.keys() and isinstance(config.get("quantization"), dict)
    return str(settings.get("quant_method") or ("bitsandbytes" if bits else MLX if mlx else "an unnamed method"))


def check_quantisation(method: str | None, name: str, *, cuda: bool | None = None) -> None:
    """Raise ModelError if the model `name` cannot be loaded because of its quantisation: an unsupported method, a
    package that is not installed, or a CPU (`cuda` False; None if the device is not known yet)."""
    if method is None:
        return
    requirements = METHODS.get(method)
    if requirements is None:
        raise ModelError(f"the weights of {name} are quantised by {method}, which is not supported", _REMEDY)
    absent = [
        _PACKAGES.get(module, module.replace("_", "-")) for module in requirements.modules if not _is_installed(module)
    ]
    if absent:
        packages = " and ".join(absent)
        verb = "is" if len(absent) == 1 else "are"
        raise ModelError(
            f"the weights of {name} are quantised by {method}, for which {packages} {verb} not installed",
            f"pip install {' '.join(absent)}, or take the model that is not quantised",
        )
    if requirements.cuda_only and cuda is False:
        raise ModelError(f"the weights of {name} are quantised by {method}, which needs a CUDA device", _REMEDY)


def check_small_dtype(dtype: str, method: str | None, name: str, *, experts: int, cuda: bool) -> None:
    """Check that the weights of a model can be quantised to a small dtype as they are loaded.

    Args:
        dtype: The small dtype.
        method: Method by which the weights are quantised in the checkpoint, if any.
        name: Name of the model, for errors.
        experts: Number of experts that a token goes through; 0 for a dense model.
        cuda: Whether the model is loaded to a CUDA device.

    Raises:
        ModelError: They cannot.
    """
    if method is not None:
        raise ModelError(f"the weights of {name} are quantised already, by {method}", "leave dtype at auto")
    if cuda:
        raise ModelError(
            f"dtype {dtype} is for a CPU", "add --device cpu, or take a model whose weights are stored as FP8 or AWQ"
        )
    if experts:
        raise ModelError(
            f"{name} is a mixture of experts, whose weights dtype {dtype} does not quantise",
            "take bfloat16, or have a server answer for it, such as llama.cpp (--api)",
        )


def expands(method: str | None, *, cuda: bool) -> bool:
    """Return True if weights of this method are expanded to one dtype as they are loaded to such a device."""
    return method in METHODS and METHODS[method].expands_on(cuda=cuda)


def values_of(config: Mapping[str, Any], name: str, dtype: str, bits: int) -> int:
    """Return the number of parameters in an element of a tensor: 0 for scales and the like, several for packed weights.

    Args:
        config: Contents of the `config.json` of a quantised checkpoint.
        name: Name of the tensor.
        dtype: Its dtype, as safetensors names it.
        bits: Bits of an element of this dtype.
    """
    if SIDE_TENSORS.search(name):
        return 0
    if not _PACKED.search(name) and not (name.endswith(".weight") and dtype.startswith("U")):
        return 1
    return max(1, bits // min(_weight_bits(config), default=PACKED_BITS))


def _weight_bits(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the numbers of bits that a configuration names for weights."""
    settings = config.get("quantization_config")
    sections = [settings, config.get("quantization")]
    if isinstance(settings, dict):
        groups = settings.get("config_groups")
    else:
        groups = None
    for group in groups.values() if isinstance(groups, dict) else ():
        sections.append(group.get("weights") if isinstance(group, dict) else None)
    for section in sections:
        if isinstance(section, dict):
            sizes = [section.get(key) for key in ("bits", "w_bit", "num_bits")]
        else:
            sizes = []
        yield from (bits for bits in sizes if isinstance(bits, int) and bits > 0)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a submodule whose package is absent
        return False
