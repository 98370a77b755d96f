"""Tiny Qwen-VL models with random weights, of all families, as live models and as folders on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from arr_coc.qwen.families import family_of
from arr_coc.qwen.preprocess import PixelNormalisation, Preprocessing, after_frame, text_positions, visual_positions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import TileGrid

FAMILIES = ("qwen3_vl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")

ATTENDING = tuple(family for family in FAMILIES if not family_of(family, family).recurrent)
"""Those whose layers all attend."""

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

CORPUS = (
    "Say what happens. a red circle moves left. Is the cat sleeping? What is the number in the upper left?",
    "You are a helpful assistant. system user assistant <3.2 seconds> there are two green squares below",
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n"
    "{%- if message.content is string -%}{{ message.content }}{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ part.text }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)

TRIMMING_TEMPLATE = (
    "{%- macro shown(content) -%}{%- if content is string -%}{{ content }}{%- else -%}{%- for part in content -%}"
    "{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ part.text }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{%- endmacro -%}"
    "{%- set last = namespace(user=0) -%}"
    "{%- for message in messages -%}{%- if message.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}"
    "{%- endfor -%}"
    "{%- for message in messages -%}{%- set content = shown(message.content) | trim -%}"
    "{%- set thoughts = '' -%}"
    "{%- if message.role == 'assistant' -%}"
    "{%- if message.reasoning_content is string -%}{%- set thoughts = message.reasoning_content | trim -%}"
    "{%- elif '</think>' in content -%}"
    "{%- set thoughts = content.split('</think>')[0].split('<think>')[-1] | trim -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') -%}{%- endif -%}"
    "{%- if loop.index0 > last.user -%}"
    "{%- set content = '<think>\n' + thoughts + '\n</think>\n\n' + content -%}{%- endif -%}{%- endif -%}"
    "{{ '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\n\n</think>\n\n' }}"
    "{%- else -%}{{ '<think>\n' }}{%- endif -%}{%- endif -%}"
)
"""Template with the rules of Qwen3.5's: white space around texts is left out, and so are the thoughts of answers before
the last question; a switch ends the new answer's at once."""

HEAD_DIM = 32
VOCABULARY = 512


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with Qwen's special tokens and chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        additional_special_tokens=list(SPECIAL_TOKENS[3:]),
    )


def tiny_model(family: str = "qwen3_vl", patch_px: int | None = None, seed: int = 0, **config: Any) -> Any:
    """A random model of the family, fp32, in eval mode. `config` is added to its configuration.

    `patch_px` defaults to the family's own: 16 for Qwen3-VL and its mixture of experts, 14 for the older two.
    """
    torch.manual_seed(seed)
    token_ids = {
        "image_token_id": SPECIAL_TOKENS.index("<|image_pad|>"),
        "video_token_id": SPECIAL_TOKENS.index("<|video_pad|>"),
        "vision_start_token_id": SPECIAL_TOKENS.index("<|vision_start|>"),
        "vision_end_token_id": SPECIAL_TOKENS.index("<|vision_end|>"),
    }
    model = _BUILDERS[family](patch_px, {**token_ids, **config}).eval()
    for name, parameter in model.named_parameters():
        # Spread weights and biases, so that a wrong position or a lost bias shows in the logits.
        if parameter.ndim > 1 or name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.08)
    model.generation_config.eos_token_id = [
        SPECIAL_TOKENS.index("<|im_end|>"),
        SPECIAL_TOKENS.index("<|endoftext|>"),
    ]
    model.generation_config.pad_token_id = SPECIAL_TOKENS.index("<|endoftext|>")
    return model


def tiny_qwen(family: str = "qwen3_vl", **config: Any) -> QwenVL:
    """The tiny model as the adapter holds it."""
    model = tiny_model(family, **config)
    preprocessing = Preprocessing(model.config.vision_config.patch_size, PixelNormalisation(), 32 * 32, 4096 * 4096)
    return QwenVL(model, tiny_tokenizer(), preprocessing, f"tiny-{family}", family_of(family, family))


def tiny_folder(folder: Path, family: str = "qwen3_vl", shard_size: str = "1GB", **config: Any) -> Path:
    """A model folder as the hub's: config, safetensors, tokenizer, generation and preprocessor configuration."""
    model = tiny_model(family, **config)
    model.save_pretrained(folder, max_shard_size=shard_size)
    tiny_tokenizer().save_pretrained(folder)
    old = family.startswith("qwen2")
    preprocessor = {
        "patch_size": 14 if old else 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073] if old else [0.5, 0.5, 0.5],
        "image_std": [0.26862954, 0.26130258, 0.27577711] if old else [0.5, 0.5, 0.5],
        "image_processor_type": "Qwen2VLImageProcessor" if old else "Qwen2VLImageProcessorFast",
    }
    preprocessor |= (
        {"min_pixels": 3136, "max_pixels": 12845056}
        if old
        else {"size": {"shortest_edge": 4096, "longest_edge": 16777216}}
    )
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


def save_processor(folder: Path, family: str = "qwen3_vl") -> None:
    """Save the folder's processors again as transformers 5 does: all in `processor_config.json`.

    Their class asks for torchvision to make a video processor; another image processor stands for it.
    """
    old = folder / "preprocessor_config.json"
    image = Qwen2VLImageProcessorPil.from_dict(json.loads(old.read_text()))
    video = Qwen2VLImageProcessorPil(size={"shortest_edge": 1, "longest_edge": 2}, image_mean=[0.1, 0.2, 0.3])
    stock = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor}.get(family, Qwen3VLProcessor)

    class Processor(stock):  # type: ignore[misc, valid-type]
        def check_argument_for_proper_class(self, *_: Any) -> None:
            pass

    old.unlink()
    Processor(image, tiny_tokenizer(), video, chat_template=CHAT_TEMPLATE).save_pretrained(folder)


def quantise(folder: Path, method: str = "fp8", scale_name: str = "weight_scale_inv", **settings: Any) -> None:
    """Store the projections of a tiny folder's decoder in FP8, each with one scale, all else in bfloat16."""
    weights = load_file(folder / "model.safetensors")
    for name, weight in list(weights.items()):
        weights[name] = weight.to(torch.bfloat16)
        if "language_model.layers" in name and name.endswith("proj.weight"):
            scale = weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
            weights[name] = (weight / scale).to(torch.float8_e4m3fn)
            weights[name.removesuffix("weight") + scale_name] = scale.reshape(1, 1)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"dtype": "bfloat16", "quantization_config": {"quant_method": method, **settings}}
    (folder / "config.json").write_text(json.dumps(config))


FP8_SETTINGS = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.visual"],
}
"""Of the published FP8 checkpoints of Qwen3-VL; no side of a tiny weight is longer than a block."""


def _text_config() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "default", "type": "mrope", "mrope_section": [6, 5, 5]},
        "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
        "bos_token_id": None,
    }


def _qwen3(patch_px: int | None, config: dict[str, Any]) -> Any:
    text, vision = _qwen3_configs(patch_px)
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision, **config))


def _qwen3_moe(patch_px: int | None, config: dict[str, Any]) -> Any:
    """Of its three layers the middle one is dense; no side of an expert's weights is as long as another."""
    text, vision = _qwen3_configs(patch_px)
    text |= {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [1]}
    return Qwen3VLMoeForConditionalGeneration(Qwen3VLMoeConfig(text_config=text, vision_config=vision, **config))


def _qwen3_configs(patch_px: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    vision = {
        "depth": 3,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": patch_px or 16,
        "out_hidden_size": 64,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 1],
    }
    text = {**_text_config(), "head_dim": HEAD_DIM}
    text["rope_scaling"] = {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    return text, vision


def _qwen2(patch_px: int | None, config: dict[str, Any]) -> Any:
    vision = {
        "depth": 3,
        "embed_dim": 48,
        "hidden_size": 64,
        "num_heads": 2,
        "mlp_ratio": 2,
        "patch_size": patch_px or 14,
    }
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=_text_config(), vision_config=vision, **config))


def _qwen2_5(patch_px: int | None, config: dict[str, Any]) -> Any:
    vision = {
        "depth": 4,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": patch_px or 14,
        "out_hidden_size": 64,
        "window_size": 8 * (patch_px or 14),
        "fullatt_block_indexes": [1, 3],
    }
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(text_config=_text_config(), vision_config=vision, **config)
    )


def _qwen3_5(patch_px: int | None, config: dict[str, Any]) -> Any:
    """Every second of its four layers attends, with half of each head rotated."""
    from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    text, vision = _qwen3_5_configs(patch_px)
    return Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=vision, **config))


def _qwen3_5_moe(patch_px: int | None, config: dict[str, Any]) -> Any:
    from transformers.models.qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

    text, vision = _qwen3_5_configs(patch_px)
    text |= {
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    }
    return Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(text_config=text, vision_config=vision, **config))


def _qwen3_5_configs(patch_px: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    text, vision = _qwen3_configs(patch_px)
    del vision["deepstack_visual_indexes"], text["rope_scaling"], text["rope_theta"]
    text |= {
        "num_hidden_layers": 4,
        "full_attention_interval": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 8,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    }
    return text, vision


_BUILDERS = {
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3_moe,
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen2_5,
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5_moe,
}


def mrope_positions(before: int, regions: torch.Tensor, grid: TileGrid, after: int) -> torch.Tensor:
    """M-RoPE rows of `before` text tokens, one frame of `regions` int [K, 3], then `after` text tokens: [3, tokens]."""
    text = text_positions(0, before), text_positions(after_frame(before, grid), after)
    return torch.cat([text[0], visual_positions(before, regions), text[1]], dim=-1)
