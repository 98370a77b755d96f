"""Memory that a model needs, estimated from checkpoint metadata, and what is free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arr_coc.errors import ModelError, ModelNotFound
from arr_coc.qwen.checkpoint import Checkpoint, check_folder, read_config
from arr_coc.qwen.families import DecoderLayers, ModelFamily, family_of
from arr_coc.qwen.quantisation import SMALL_DTYPES, expands, quantisation_of, values_of
from arr_coc.qwen.weight_files import INDEX, read_object

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Names of dtypes, by safetensors' names."""

_CHECKPOINT_DTYPES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "BF16": 2,
    "F16": 2,
    "I16": 2,
    "U16": 2,
}
"""Bytes of a number by safetensors' names; all others take one."""

PATCHES_A_TOKEN = 4
"""Patches that the vision encoder merges into one visual token."""

PIXELS_A_TOKEN = 3 * 32 * 32
"""Bytes of the pixels of one visual token."""

EXPERT_COPIES = 3
"""How many rows of the model's width a mixture of experts holds for a token and each expert that it goes through: as it
enters, as it leaves, and weighted (grouped matrix products, as transformers computes them)."""

LIVE = 3
"""How many layers' worth of intermediate values are held at once, with what the allocator keeps. Measured on the
bundled model with 64 to 2040 tokens: within a tenth."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model's architecture in numbers; `checkpoint_bytes` are those of its weights as they are stored, which are kept
    so if they are `quantised`, by this method.

    `outputs`: rows that the vision encoder gives for a token, its embedding and each deepstack level. `parameters` and
    bytes are those of all experts; `intermediate` are a token's values inside a layer's MLP, and `experts_per_token`
    says through how many it goes, 0 in a dense model. `notices` as in `Checkpoint`.
    `stored_dtype`: of all weights, None if they differ or are quantised.
    """

    family: ModelFamily
    parameters: int
    checkpoint_bytes: int
    context_tokens: int
    decoder: DecoderLayers
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int
    vision_hidden: int
    vision_intermediate: int
    vision_layers: int
    outputs: int
    known_world: str | None
    experts_per_token: int = 0
    quantised: str | None = None
    notices: tuple[str, ...] = ()
    stored_dtype: str | None = None

    @classmethod
    def read(cls, folder: Path, name: str, *, quantised: bool = False) -> ModelSpec:
        """Read configuration and headers. Raises ModelNotFound or ModelError as loading would, but with `quantised`
        not because of a method of quantisation."""
        return cls.of(check_folder(folder, name, quantised=quantised), name)

    @classmethod
    def of(cls, checkpoint: Checkpoint, name: str) -> ModelSpec:
        """Return the specification of a checkpoint. Raises ModelError if its configuration lacks a number."""
        parameters, checkpoint_bytes = _counted(checkpoint)
        spec = cls._of(checkpoint.config, parameters, checkpoint_bytes, checkpoint.quantised, name)
        dtypes = {tensor.dtype for tensor in checkpoint.tensors.values()}
        if len(dtypes) == 1:
            stored_dtype = _NAMES.get(dtypes.pop())
        else:
            stored_dtype = None
        return replace(spec, notices=checkpoint.notices, stored_dtype=stored_dtype)

    def loading_bytes(self, weights: int) -> int:
        """Return the most host memory while loading to so many bytes of weights.

        Weights of one dtype are converted one by one, and the stored ones leave (`convert_dtype.py`). Otherwise, and
        if transformers joins weights of experts, both forms are in memory at the end.
        """
        one_by_one = self.stored_dtype is not None and not self.experts_per_token
        if one_by_one:
            return max(weights, self.checkpoint_bytes)
        return weights + self.checkpoint_bytes

    def for_device(self, *, cuda: bool) -> ModelSpec:
        """Return the specification as loaded to a CUDA device or a CPU: quantised weights that are expanded there count
        as stored in half precision."""
        if not expands(self.quantised, cuda=cuda):
            return self
        return replace(self, quantised=None, checkpoint_bytes=2 * self.parameters)

    @classmethod
    def of_index(cls, folder: Path, name: str) -> ModelSpec:
        """Read `config.json` and the size in `model.safetensors.index.json` of a folder that has no weights yet.

        Raises ModelNotFound if one is missing, ModelError if it cannot be used.
        """
        config = read_config(folder)
        if not (folder / INDEX).is_file():
            raise ModelNotFound(f"{name} has no weights and no {INDEX} in {folder}", "download the model again")
        metadata = read_object(folder / INDEX).get("metadata")
        if isinstance(metadata, dict):
            total_bytes = metadata.get("total_size")
        else:
            total_bytes = None
        if not isinstance(total_bytes, (int, float)) or not 0 < total_bytes < 1e15:
            raise ModelError(f"{INDEX} of {name} names no total_size", "download it again")
        text = config.get("text_config") or config
        dtype = config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
        parameters = int(total_bytes) // BYTES.get(str(dtype), 2)
        return cls._of(config, parameters, int(total_bytes), quantisation_of(config, folder), name)

    @classmethod
    def _of(
        cls, config: Mapping[str, Any], parameters: int, checkpoint_bytes: int, quantised: str | None, name: str
    ) -> ModelSpec:
        text = config.get("text_config") or config
        vision = config.get("vision_config") or {}
        family = family_of(config.get("model_type"), name)
        try:
            heads = int(text["num_attention_heads"])
            hidden = int(text["hidden_size"])
            vision_hidden = int(vision.get("embed_dim") or vision["hidden_size"])
            return cls(
                family=family,
                parameters=parameters,
                checkpoint_bytes=checkpoint_bytes,
                context_tokens=int(text["max_position_embeddings"]),
                decoder=family.decoder_layers(text),
                kv_heads=int(text.get("num_key_value_heads") or heads),
                head_dim=int(text.get("head_dim") or hidden // heads),
                hidden=hidden,
                intermediate=_mlp_width(text),
                vocabulary=int(text["vocab_size"]),
                vision_hidden=vision_hidden,
                vision_intermediate=int(vision.get("intermediate_size") or 4 * vision_hidden),
                vision_layers=int(vision["depth"]),
                outputs=1 + (len(vision.get("deepstack_visual_indexes") or ()) if family.deepstack else 0),
                known_world=config.get("arr_coc_world"),
                experts_per_token=_experts_per_token(text),
                quantised=quantised,
            )
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise ModelError(
                f"the config.json of {name} lacks a number ({error})", "download the model again"
            ) from error


@dataclass(frozen=True, slots=True)
class Workload:
    """Load on a model: a frame of `visual_tokens`, or a group of pictures of `memory_tokens`, in the prompt;
    `other_tokens` are all others of prompt and answer. The vision encoder takes in `encoded_tokens` of a frame, as many
    as are shown if None; if it is incremental, it keeps what `kept_vision_mb` allows, which is 0 otherwise. Of
    several `streams`, answered about by turns, each keeps its own. The group of pictures has `memory_frames` frames; if
    the model `reads_ahead`, another one is written beside it."""

    visual_tokens: int
    other_tokens: int
    encoded_tokens: int | None = None
    kept_vision_mb: float = 0.0
    streams: int = 1
    memory_tokens: int = 0
    memory_frames: int = 1
    reads_ahead: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Of the longest prompt, with its answer."""
        return max(self.memory_tokens, self.visual_tokens) + self.other_tokens


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes that a model takes: its weights, the keys and values of one prompt and answer, activations at their
    largest, and, of all streams, the caches of the vision encoder, or the groups of pictures with them."""

    weights: int
    cache: int
    activations: int
    vision_cache: int = 0
    groups: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations + self.vision_cache + self.groups

    @classmethod
    def of(cls, facts: ModelSpec, dtype: str, load: Workload) -> MemoryEstimate:
        """`dtype` as `--dtype` has it; `auto` is the checkpoint's own. With small weights, all else is float32.

        The largest activations are the vision encoder's or the prefill's, whichever are more.
        """
        if facts.quantised:
            checkpoint_itemsize = 2
        else:
            checkpoint_itemsize = max(1, round(facts.checkpoint_bytes / max(facts.parameters, 1)))
        if dtype in SMALL_DTYPES:
            size = 4
        else:
            size = BYTES.get(dtype) or checkpoint_itemsize
        a_token = 2 * len(facts.decoder.attending) * facts.kv_heads * facts.head_dim * size
        states = facts.decoder.state_bytes(size)
        cache = a_token * (load.prompt_tokens - load.memory_tokens) + (0 if load.memory_tokens else states)
        if load.encoded_tokens is None:
            encoded = load.visual_tokens
        else:
            encoded = load.encoded_tokens
        vision = encoded * PATCHES_A_TOKEN * (6 * facts.vision_hidden + 2 * facts.vision_intermediate) * size
        tokens = load.visual_tokens + load.other_tokens
        hidden = (6 + EXPERT_COPIES * facts.experts_per_token) * facts.hidden
        prefill = tokens * (hidden + 3 * facts.intermediate) * size + facts.vocabulary * 4
        if dtype in SMALL_DTYPES:
            weights = _small_bytes(facts, dtype)
        else:
            weights = facts.parameters * size
        if facts.quantised:
            weights = facts.checkpoint_bytes
        if load.memory_tokens:
            caches = 2 if load.reads_ahead else 1
            group = caches * (states + load.memory_tokens * a_token) + load.memory_tokens * PIXELS_A_TOKEN
            return cls(weights, cache, LIVE * max(vision, prefill), groups=load.streams * group)
        return cls(weights, cache, LIVE * max(vision, prefill), load.streams * _vision_bytes(facts, load, size))


def _small_bytes(facts: ModelSpec, dtype: str) -> int:
    """Return the bytes of weights in 8 bits, or with 4.5 in the decoder's layers. Embeddings stay in the file."""
    vision = facts.vision_layers * facts.vision_hidden * (4 * facts.vision_hidden + 2 * facts.vision_intermediate)
    decoder = max(0, facts.parameters - vision - facts.vocabulary * facts.hidden)
    return facts.parameters - (decoder * 7 // 16 if dtype == "int4" else 0)


def _vision_bytes(facts: ModelSpec, load: Workload, size: int) -> int:
    """Return the bytes that incremental encoding keeps, as `vision_cache.py` allots them: a frame's regions and as
    many that left; nothing if one frame alone exceeds the limit. With small weights keys and values may have half."""
    values = 2 * facts.vision_layers * PATCHES_A_TOKEN * facts.vision_hidden + facts.outputs * facts.hidden
    a_region = values * size + PIXELS_A_TOKEN
    capacity = int(load.kept_vision_mb * 1e6) // a_region
    if capacity >= load.visual_tokens:
        return min(capacity, 2 * load.visual_tokens) * a_region
    return 0


def _counted(checkpoint: Checkpoint) -> tuple[int, int]:
    """Parameters of all tensors, and their bytes; several parameters are packed into one number of some."""
    parameters = checkpoint_bytes = 0
    for name, tensor in checkpoint.tensors.items():
        count = math.prod(tensor.shape)
        size = _CHECKPOINT_DTYPES.get(tensor.dtype, 1)
        if checkpoint.quantised:
            values = values_of(checkpoint.config, name, tensor.dtype, 8 * size)
        else:
            values = 1
        parameters += count * values
        checkpoint_bytes += count * size
    return parameters, checkpoint_bytes


def _experts_per_token(text: Mapping[str, Any]) -> int:
    """Return the number of experts that a token goes through in a layer; 0 without experts."""
    if "moe_intermediate_size" in text:
        return int(text["num_experts_per_tok"])
    return 0


def _mlp_width(text: Mapping[str, Any]) -> int:
    """Return the values of a token inside a layer's MLP, at most: a dense one's, or those of all experts that it goes
    through."""
    experts = _experts_per_token(text)
    if not experts:
        return int(text["intermediate_size"])
    mixed = experts * int(text["moe_intermediate_size"]) + int(text.get("shared_expert_intermediate_size") or 0)
    if text.get("mlp_only_layers") or text.get("decoder_sparse_step", 1) > 1:
        return max(mixed, int(text["intermediate_size"]))
    return mixed
