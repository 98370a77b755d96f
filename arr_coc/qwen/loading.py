"""Loading of model and tokenizer, with errors that name the remedy."""

from __future__ import annotations

import importlib.util
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError

from arr_coc.errors import ModelError, OptionError, counted
from arr_coc.hub import bundled_model_path, download, local_folder
from arr_coc.layer_weights import load_bundled_layer, load_layer
from arr_coc.qwen.checkpoint import read_config
from arr_coc.qwen.convert_dtype import convert_weights
from arr_coc.qwen.cpu_precision import LARGE_PARAMETERS, dtype_on_cpu
from arr_coc.qwen.direct_load import load_directly, read_transformers_config
from arr_coc.qwen.families import TOWER_FAMILIES, check_transformers, family_of
from arr_coc.qwen.memory_estimate import ModelSpec
from arr_coc.qwen.onednn import use_onednn
from arr_coc.qwen.preprocess import Preprocessing
from arr_coc.qwen.quantisation import SMALL_DTYPES, check_quantisation, check_small_dtype, expands
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.weight_files import read_object

DeviceMap: TypeAlias = str | int | torch.device | Mapping[str, Any]
"""A device map of transformers: a device for the whole model, a strategy of spreading it, or a map of modules."""

SPREADING = ("auto", "balanced", "balanced_low_0", "sequential")
"""Strategies of accelerate to spread a model over devices."""

SHRINKER = "arr_coc.qwen.small_weights.shrinker"
"""Module that makes models in SMALL_DTYPES, imported for these only."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_UNUSABLE = (
    *(OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, IndexError, ImportError),
    *(ZeroDivisionError, AssertionError, SafetensorError),
)
"""Exceptions of transformers for a folder whose files do not match, or that needs a package that is not installed."""

FALLBACK_LOGGER = "transformers.integrations.hub_kernels"
"""Logger that reports for each operation of a recurrent layer that torch computes it, because packages that need a GPU
are not installed."""

_SUMMED_VALUES = 2**24
"""Number of values that are summed at once."""

_NUMBERED_PART = re.compile(r"(?:^|\.)(?:layers|blocks)\.\d+\.")


def load_qwen(
    name: str | Path | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    device_map: DeviceMap | None = None,
    token: str | None = None,
    allocator: str | Path | None = None,
    cache_weights: bool = False,
) -> QwenVL:
    """Load a model with its tokenizer, preprocessing and allocator.

    Args:
        name: A folder, a name on the hub (`owner/model`), or None for the bundled model.
        device: `auto` is the first CUDA device, else the CPU.
        dtype: `auto` is the checkpoint's dtype, on the CPU that of `dtype_on_cpu`. `int8` and `int4` are made while the
            model is loaded, on the CPU only (`small_weights/`).
        device_map: As in transformers; it replaces `device`, or spreads the model over several devices by accelerate.
        token: Token of the hub, for private and gated models.
        allocator: A folder that `adapt` wrote, or a name on the hub. If None, the allocator in the model's folder
            `arr_coc` is loaded, if it was trained for these weights.
        cache_weights: With `int8` and `int4`, keep the weights in a sub-folder of the model's folder, and load them
            from it if it exists (`small_weights/cache.py`).

    Raises:
        OptionError: `cache_weights` with another dtype.
        ModelNotFound: No such folder or name, no weights, or no network.
        ModelError: A gated model, another architecture, damaged files, an unavailable device, an unknown dtype, too
            little memory, or an allocator of another model.
    """
    device, device_map = _placement(device, device_map)
    target = _device(device)
    small = next((name for name in SMALL_DTYPES if name == str(dtype).removeprefix("torch.")), None)
    if cache_weights and small is None:
        raise OptionError(f"cache_weights is for dtype int8 and int4, got {dtype}", "leave it out")
    folder = bundled_model_path() if name is None else local_folder(name)
    model_id = folder.resolve().name if folder else str(name)
    if folder is None:
        # The architecture is checked before gigabytes of weights are fetched.
        config = read_config(download(model_id, token, ("config.json",)))
        check_transformers(family_of(config.get("model_type"), model_id), model_id)
        folder = download(model_id, token)
    facts = ModelSpec.read(folder, model_id)
    check_transformers(facts.family, model_id)
    on_cuda = target.type == "cuda" or device_map is not None
    check_quantisation(facts.quantised, model_id, cuda=on_cuda)
    if small is not None:
        check_small_dtype(small, facts.quantised, model_id, experts=facts.experts_per_token, cuda=on_cuda)
    if dtype == "auto" and target.type == "cpu" and device_map is None:
        dtype = dtype_on_cpu(facts.for_device(cuda=False))
    shrinker = None
    if small is not None:
        shrinker = importlib.import_module(SHRINKER).WeightShrinker(folder, small, cached=cache_weights)
    with quiet():
        cached = None if shrinker is None else shrinker.load()
        model = cached
        if model is None:
            if small:
                load_dtype = DTYPES.get(str(facts.stored_dtype), "auto")
            else:
                load_dtype = _dtype(dtype)
            model = _load_weights(folder, model_id, facts, load_dtype, target, device_map, to_small=small is not None)
        tokenizer = _load_tokenizer(folder, model_id, model.config)
        if shrinker is None:
            for key, weight in model.named_parameters():
                _check_finite(model_id, key, weight)
        elif cached is None:
            shrinker.shrink(model, partial(_check_finite, model_id))
    if model.config.vision_config.model_type not in TOWER_FAMILIES:
        model.config.vision_config.model_type = facts.family.model_type
    use_onednn(model)
    if facts.family.recurrent:
        logging.getLogger(FALLBACK_LOGGER).addFilter(_says_no_fallback)
    preprocessing = Preprocessing.read(folder, facts.family, int(model.config.vision_config.patch_size))
    embeddings = model.get_input_embeddings().weight
    if allocator is None:
        layer = load_bundled_layer(folder, embeddings, model_id)
    else:
        layer = load_layer(allocator, embeddings, model_id)
    notices = (*facts.notices, *(() if shrinker is None else shrinker.notices))
    return QwenVL(model, tokenizer, preprocessing, model_id, facts.family, layer, notices, small)


def _says_no_fallback(record: logging.LogRecord) -> bool:
    return "is falling back to its reference PyTorch implementation" not in record.getMessage()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and progress bars of transformers."""
    from transformers.utils import logging as library_logging

    verbosity = library_logging.get_verbosity()
    bars = library_logging.is_progress_bar_enabled()
    library_logging.set_verbosity_error()
    library_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        library_logging.set_verbosity(verbosity)
        if bars:
            library_logging.enable_progress_bar()


def _placement(
    device: str | torch.device, device_map: DeviceMap | None
) -> tuple[str | torch.device, str | dict[str, Any] | None]:
    """Return the device of the whole model, and the map that spreads it, if any; one device needs no accelerate."""
    if isinstance(device_map, Mapping) and list(device_map) != [""]:
        return device, dict(device_map)
    placement: Any = device_map[""] if isinstance(device_map, Mapping) else device_map
    if placement is None:
        return device, None
    if placement not in SPREADING:
        return f"cuda:{placement}" if isinstance(placement, int) else placement, None
    if torch.cuda.device_count() <= 1 and importlib.util.find_spec("accelerate") is None:
        return device, None
    return device, placement


def _device(name: str | torch.device) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        raise ModelError(f"device {str(name)!r} cannot be used on this machine", "try auto or cpu") from error
    return device


def _dtype(name: str | torch.dtype) -> torch.dtype | str:
    if name == "auto":
        return "auto"
    name = str(name).removeprefix("torch.")
    if name not in DTYPES:
        raise ModelError(f"unknown dtype {name!r}", f"there are auto, {', '.join((*DTYPES, *SMALL_DTYPES))}")
    return DTYPES[name]


def _load_weights(
    folder: Path,
    name: str,
    facts: ModelSpec,
    dtype: torch.dtype | str,
    device: torch.device,
    device_map: str | dict[str, Any] | None,
    *,
    to_small: bool,
) -> Any:
    """Load the model. `to_small`: its linear layers are quantised next, so a small model is loaded in float32."""
    model = None
    if facts.parameters < LARGE_PARAMETERS and device_map is None:
        model = _load_small_model(folder, name, torch.float32 if to_small else dtype, device)
    if model is None:
        return _load_model(folder, name, facts, dtype, device, device_map)
    return model


def _load_small_model(folder: Path, name: str, dtype: torch.dtype | str, device: torch.device) -> Any | None:
    """Load the model directly if possible; None if `_load_model` has to convert it or report the error."""
    if isinstance(dtype, str):
        return None
    try:
        model = load_directly(folder, name, dtype)
        if model is None:
            return None
        return model.to(device).eval().requires_grad_(False)
    except (*_UNUSABLE, torch.OutOfMemoryError):
        return None


def _load_model(
    folder: Path,
    name: str,
    facts: ModelSpec,
    dtype: torch.dtype | str,
    device: torch.device,
    device_map: str | dict[str, Any] | None,
) -> Any:
    from transformers.models.auto.modeling_auto import AutoModelForImageTextToText

    if device_map is not None and importlib.util.find_spec("accelerate") is None:
        raise ModelError("a device map needs accelerate: pip install accelerate")
    expanded = expands(facts.quantised, cuda=device.type == "cuda" or device_map is not None)
    converted = isinstance(dtype, torch.dtype) and facts.stored_dtype in DTYPES
    loaded_dtype = DTYPES[str(facts.stored_dtype)] if converted else dtype
    try:
        config = read_transformers_config(folder)
        if expanded:
            config.quantization_config |= {"dequantize": True, "run_compressed": False}
        model, info = AutoModelForImageTextToText.from_pretrained(
            folder,
            config=config,
            dtype=loaded_dtype,
            device_map=device_map,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # `_check_loaded` reports them
            output_loading_info=True,
            trust_remote_code=False,  # code in a model's folder never runs, and transformers does not ask to run it
            use_safetensors=True,  # pickles can run code
        )
        if isinstance(dtype, torch.dtype) and (expanded or loaded_dtype != dtype):
            convert_weights(model, dtype)
        if device_map is None:
            model = model.to(device)
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{name} does not fit into the memory of {device}", "give a device map or a smaller model"
        ) from error
    except ImportError as error:
        raise ModelError(
            f"{name} cannot be loaded, because a package is missing: {_first_line(error)}", "install it"
        ) from error
    except _UNUSABLE as error:
        raise ModelError(f"{name} cannot be loaded: {_first_line(error)}", "download the model again") from error
    _check_loaded(info, name)
    if len({parameter.device for parameter in model.model.visual.parameters()}) > 1 or any(
        parameter.is_meta for parameter in model.model.visual.parameters()
    ):
        raise ModelError(
            f"the vision tower of {name} must lie on one device", "put model.visual there in the device map"
        )
    return model.eval().requires_grad_(False)


def _check_loaded(info: Mapping[str, Any], name: str) -> None:
    """Raise ModelError if weights and `config.json` do not belong to one model.

    `info`: the loading info of transformers. Unused weights are an error only if they belong to a layer.
    """
    mismatched = sorted(info["mismatched_keys"])
    if mismatched:
        key, shape, configured = mismatched[0]
        raise ModelError(
            f"{name} has {counted(len(mismatched), 'weight')} of another shape than its config.json says, such "
            f"as {key}: {list(shape)}, not {list(configured)}",
            "take both from the same model",
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            f"{name} lacks {counted(len(missing), 'weight')}, such as {missing[0]}", "download the model again"
        )
    unused = sorted(key for key in info["unexpected_keys"] if _NUMBERED_PART.search(key) and "inv_freq" not in key)
    if unused:
        raise ModelError(
            f"{name} has {counted(len(unused), 'weight')} that its config.json does not describe, such as {unused[0]}",
            "take both from the same model",
        )


def _check_finite(name: str, key: str, weight: torch.Tensor) -> None:
    """Raise ModelError if a weight of the model `name` holds NaN or infinity, by sums of its parts.

    Not checked: FP8, which has no sums and is expanded on a CPU, packed integers, and weights that a device map left
    out.
    """
    if weight.is_meta or not weight.is_floating_point() or weight.element_size() < 2:
        return
    parts = weight.flatten().split(_SUMMED_VALUES)  # torch converts what it sums to float32 first
    if any(not part.sum(dtype=torch.float32).isfinite() and not part.isfinite().all() for part in parts):
        raise ModelError(f"the weights of {name} hold NaN or infinity, such as {key}", "download the model again")


def _load_tokenizer(folder: Path, name: str, config: Any) -> Any:
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except _UNUSABLE as error:
        raise ModelError(f"{name} has no usable tokenizer: {_first_line(error)}", "download the model again") from error
    if tokenizer.convert_tokens_to_ids("<|vision_start|>") != config.vision_start_token_id:
        raise ModelError(
            f"the tokenizer of {name} is another model's: <|vision_start|> has another id in config.json",
            "take the tokenizer files from where the weights came from",
        )
    highest = max(tokenizer.get_vocab().values())
    vocabulary = int(config.get_text_config().vocab_size)
    if highest >= vocabulary:
        raise ModelError(
            f"the tokenizer of {name} is another model's: its ids go up to {highest}, and the weights know "
            f"{vocabulary} tokens",
            "take the tokenizer files from where the weights came from",
        )
    template = folder / "chat_template.json"
    if not tokenizer.chat_template and template.is_file():
        tokenizer.chat_template = read_object(template).get("chat_template")
    return tokenizer


def _first_line(error: BaseException) -> str:
    if isinstance(error, KeyError):  # its text is the key alone
        return f"{error} is not known"
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
