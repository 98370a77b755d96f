"""Qwen3-VL-2B's dimensions as files of llama.cpp, made from a model's folder by the package `gguf`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open

TEXT = "model.language_model."
VISION = "model.visual."

PRODUCTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
VISION_PRODUCTS = {
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
}


class GgufFile:
    """One file that is being written, with weights of a checkpoint by their names there."""

    def __init__(self, folder: Path, path: Path, architecture: str) -> None:
        import gguf

        self._gguf = gguf
        self.writer = gguf.GGUFWriter(path, architecture)
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._weights = safe_open(folder / "model.safetensors", "pt")

    def put(self, name: str, key: str, kind: str | None = None, step: int | None = None) -> None:
        """Write a weight.

        Args:
            name: Name in the file.
            key: Name in the model.
            kind: Blocks such as Q8_0; float32 if None.
            step: Step of a convolution over time; the whole weight if None.
        """
        weight = self._weights.get_tensor(key).float()
        values = (weight if step is None else weight[:, :, step].contiguous()).numpy()
        if kind is None:
            self.writer.add_tensor(name, values)
        else:
            form = self._gguf.GGMLQuantizationType[kind]
            self.writer.add_tensor(name, self._gguf.quants.quantize(values, form), raw_dtype=form)

    def put_layer(self, name: str, key: str, kind: str | None = None) -> None:
        """Write weight and bias of a layer; the bias is float32."""
        self.put(f"{name}.weight", f"{key}.weight", kind)
        self.put(f"{name}.bias", f"{key}.bias")

    def close(self, kind: str) -> None:
        """Write everything out."""
        self.writer.add_file_type(int(self._gguf.LlamaFileType[f"MOSTLY_{kind}"]))
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write_text(folder: Path, path: Path, kind: str) -> None:
    """Write the language model with products in a `kind` of blocks, Q8_0 or Q4_0; embeddings, which are the output head
    too, have 8 bits, as llama.cpp's own converter leaves them."""
    file = GgufFile(folder, path, "qwen3vl")
    text, writer = file.config["text_config"], file.writer
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_context_length(4096)
    writer.add_embedding_length(text["hidden_size"])
    writer.add_feed_forward_length(text["intermediate_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_key_length(text["head_dim"])
    writer.add_value_length(text["head_dim"])
    writer.add_rope_freq_base(text["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_sections([*text["rope_parameters"]["mrope_section"], 0])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    writer.add_num_deepstack_layers(len(file.config["vision_config"]["deepstack_visual_indexes"]))
    _add_tokenizer(writer, folder, text["vocab_size"])
    file.put("token_embd.weight", f"{TEXT}embed_tokens.weight", "Q8_0")
    file.put("output_norm.weight", f"{TEXT}norm.weight")
    for layer in range(text["num_hidden_layers"]):
        for key, name in PRODUCTS.items():
            file.put(f"blk.{layer}.{name}.weight", f"{TEXT}layers.{layer}.{key}.weight", kind)
        for key, name in NORMS.items():
            file.put(f"blk.{layer}.{name}.weight", f"{TEXT}layers.{layer}.{key}.weight")
    file.close(kind)


def write_vision(folder: Path, path: Path) -> None:
    """Write the vision tower with products in Q8_0."""
    file = GgufFile(folder, path, "clip")
    vision, writer = file.config["vision_config"], file.writer
    taps = vision["deepstack_visual_indexes"]
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("qwen3vl_merger")
    writer.add_vision_use_gelu(True)
    writer.add_vision_image_size(768)
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["depth"])
    writer.add_vision_head_count(vision["num_heads"])
    writer.add_vision_projection_dim(vision["out_hidden_size"])
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_spatial_merge_size(vision["spatial_merge_size"])
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.5, 0.5, 0.5])
    writer.add_vision_is_deepstack_layers([block in taps for block in range(vision["depth"])])
    file.put("v.patch_embd.weight", f"{VISION}patch_embed.proj.weight", step=0)
    file.put("v.patch_embd.weight.1", f"{VISION}patch_embed.proj.weight", step=1)
    file.put("v.patch_embd.bias", f"{VISION}patch_embed.proj.bias")
    file.put("v.position_embd.weight", f"{VISION}pos_embed.weight")
    for block in range(vision["depth"]):
        for key, name in VISION_PRODUCTS.items():
            file.put_layer(f"v.blk.{block}.{name}", f"{VISION}blocks.{block}.{key}", "Q8_0")
        for norm in (1, 2):
            file.put_layer(f"v.blk.{block}.ln{norm}", f"{VISION}blocks.{block}.norm{norm}")
    _put_merger(file, "merger", "v.post_ln", ("mm.0", "mm.2"))
    for index, block in enumerate(taps):
        name = f"v.deepstack.{block}"
        _put_merger(file, f"deepstack_merger_list.{index}", f"{name}.norm", (f"{name}.fc1", f"{name}.fc2"))
    file.close("Q8_0")


def _put_merger(file: GgufFile, key: str, norm: str, products: tuple[str, str]) -> None:
    file.put_layer(norm, f"{VISION}{key}.norm")
    for number, name in enumerate(products, 1):
        file.put_layer(name, f"{VISION}{key}.linear_fc{number}", "Q8_0")


def _add_tokenizer(writer: Any, folder: Path, vocabulary: int) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    by_id = {index: text for text, index in tokenizer["model"]["vocab"].items()} | special
    normal, control, unused = 1, 3, 5
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([by_id.get(index, f"[unused {index}]") for index in range(vocabulary)])
    kinds = [control if index in special else normal if index in by_id else unused for index in range(vocabulary)]
    writer.add_token_types(kinds)
    merges = tokenizer["model"].get("merges") or ["a b"]  # llama.cpp wants a list that is not empty
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(next(index for index, text in special.items() if text == "<|im_end|>"))
    writer.add_chat_template((folder / "chat_template.jinja").read_text(encoding="utf-8"))
