"""vLLM's Qwen models, extended by packets: encoding of the chosen patches, and true positions.

A region of 2^a × 2^b tiles stands between the positions of single tiles, by halves: the rotary table of the language
model gets rows for these, and vLLM's integer positions are numbers of rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding
from vllm.model_executor.models.qwen3_5 import (
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3_5MoeProcessingInfo,
    Qwen3_5ProcessingInfo,
)
from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessingInfo,
)
from vllm.model_executor.models.qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeProcessingInfo
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.transformers_utils.processor import cached_image_processor_from_config

from arr_coc_vllm.inputs import FRAME, REGIONS, TILES, PacketInfo, PacketProcessor
from arr_coc_vllm.packet import SHAPES, TILE_PX

MERGE = 2
"""Patches a side that one token merges."""

POSITIONS_MORE = 8192
"""Rows that the rotary table gets beyond vLLM's: few tokens on a large grid take more positions than tokens."""

_SCALES = torch.from_numpy(SHAPES)


def with_halves(rotary: MRotaryEmbedding) -> int:
    """Extend a rotary table to rows 0 … R − 1 of whole positions and as many of halves: row R + i is position i + ½.

    Returns R. Raises RuntimeError for a table whose rows are not those of its frequencies.
    """
    if hasattr(rotary, "arr_coc_rows"):
        return int(rotary.arr_coc_rows)
    stock = rotary.cos_sin_cache
    count = len(stock) + POSITIONS_MORE
    frequencies = rotary._compute_inv_freq(rotary.base).to(stock.device, torch.float32)
    positions = torch.arange(count, device=stock.device, dtype=torch.float32)
    angles = torch.cat([positions, positions + 0.5])[:, None] * frequencies
    table = (torch.cat([angles.cos(), angles.sin()], dim=-1) * rotary.mscale).to(stock.dtype)
    if not torch.allclose(table[: len(stock)].float(), stock.float(), atol=1e-2):
        raise RuntimeError("arr-coc-vllm does not know this model's rotary table; set VLLM_PLUGINS='' to serve it")
    table[: len(stock)] = stock
    rotary.cos_sin_cache = table
    if getattr(rotary, "cos_sin_cache_bf16", None) is not None:  # a second table, on ROCm
        rotary.cos_sin_cache_bf16 = table.to(torch.bfloat16)
    rotary.arr_coc_rows = count
    return count


def patch_places(regions: torch.Tensor) -> torch.Tensor:
    """Return the centres of the four patches of each region [K, 3], in patches of level 0: float32 [4K, 2]."""
    sides = (1 << _SCALES[regions[:, 0]])[:, None].float()
    step = torch.arange(MERGE, dtype=torch.float32)
    inner = torch.stack(torch.meshgrid(step, step, indexing="ij"), dim=-1).reshape(1, -1, 2)
    return ((regions[:, None, 1:] * MERGE * sides) + inner * sides + (sides - 1) / 2).reshape(-1, 2)


def token_rows(regions: torch.Tensor, start: int, rows: int) -> torch.Tensor:
    """Return the rows of the rotary table for the tokens of regions [K, 3] at `start`: int64 [3, K] (t, h, w)."""
    doubled = (2 * regions[:, 1:] << _SCALES[regions[:, 0]]) + (1 << _SCALES[regions[:, 0]]) - 1
    doubled = torch.cat([torch.zeros_like(doubled[:, :1]), doubled], dim=1).T + 2 * start
    return (doubled // 2).clamp(max=rows - 1) + doubled % 2 * rows


_Stock: Any = object


class SparseTokens(_Stock):
    """Part of a model class: packets beside vLLM's images and videos."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        if self.is_multimodal_pruning_enabled or self.visual.patch_size * self.visual.spatial_merge_size != TILE_PX:
            raise ValueError("arr-coc-vllm needs tokens of 32x32 pixels, unpruned (VLLM_PLUGINS='' leaves it out)")
        tables = [part for part in self.language_model.modules() if isinstance(part, MRotaryEmbedding)]
        self._rotary_rows = min(map(with_halves, tables))
        self._pixel_scale = None
        if not vllm_config.model_config.multimodal_config.mm_device_do_normalize:
            processor = cached_image_processor_from_config(vllm_config.model_config)
            self._pixel_scale = tuple(
                torch.tensor(v).view(3, 1, 1) for v in (processor.image_mean, processor.image_std)
            )

    def get_encoder_cudagraph_config(self) -> Any:
        """Packets have no grid from which a captured graph could be sized: all items are encoded eagerly."""
        return replace(super().get_encoder_cudagraph_config(), modalities=[])

    def embed_multimodal(self, **kwargs: Any) -> Any:
        if FRAME not in kwargs:
            return super().embed_multimodal(**kwargs)
        return self._encode(kwargs[TILES], kwargs[REGIONS].cpu(), kwargs[FRAME].cpu())

    def _encode(self, tiles: torch.Tensor, regions: torch.Tensor, frames: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the embeddings of each packet, with deepstack rows beside them: [K, D · (1 + levels)].

        An overview and the regions behind it are attended to separately, so that neither depends on the other.
        """
        tower, counts = self.visual, frames[:, 2].tolist()
        parts = [part for _, _, count, first in frames.tolist() for part in (first, count - first) if part]
        # As pictures of two rows of patches with so many tokens: what the attention's backend needs of their lengths.
        metadata = tower.prepare_encoder_metadata([[1, MERGE, MERGE * part] for part in parts])
        places = patch_places(regions)
        last = (frames[:, :2] * MERGE - 1).clamp(min=1).repeat_interleave(MERGE * MERGE * frames[:, 2], dim=0)
        rotary = tower.rotary_pos_emb
        frequencies = rotary._compute_inv_freq(rotary.base).to("cpu", torch.float32)
        angles, like = (places[..., None] * frequencies).flatten(1), metadata["rotary_pos_emb_cos"]
        metadata["rotary_pos_emb_cos"], metadata["rotary_pos_emb_sin"] = angles.cos().to(like), angles.sin().to(like)
        metadata["pos_embeds"] = self._position_grid(places / last).to(metadata["pos_embeds"])
        return tower(self._patches(tiles), None, encoder_metadata=metadata).split(counts)

    def _position_grid(self, places: torch.Tensor) -> torch.Tensor:
        """Return the tower's learned grid at places [N, 2] within 0 … 1, bilinear, corners aligned: float32 [N, C]."""
        weight, side = self.visual.pos_embed.weight, self.visual.num_grid_per_side
        source = (places * (side - 1)).to(weight.device)
        low = source.floor().long().clamp(0, side - 1)
        high, part = (low + 1).clamp(max=side - 1), source - source.floor()
        rows = ((low[:, 0], 1 - part[:, 0]), (high[:, 0], part[:, 0]))
        cols = ((low[:, 1], 1 - part[:, 1]), (high[:, 1], part[:, 1]))
        taps = [weight[r * side + c].float() * (by_row * by_col)[:, None] for r, by_row in rows for c, by_col in cols]
        return torch.stack(taps).sum(dim=0)

    def _patches(self, tiles: torch.Tensor) -> torch.Tensor:
        """Return tiles uint8 [K, 3, 32, 32] as the tower's rows [4K, 3·T·16·16]; raw bytes if it normalises them."""
        if self._pixel_scale is not None:
            mean, std = (part.to(tiles.device) for part in self._pixel_scale)
            tiles = (tiles.float() / 255 - mean) / std
        patch_px = self.visual.patch_size
        split = tiles.unflatten(3, (MERGE, patch_px)).unflatten(2, (MERGE, patch_px)).permute(0, 2, 4, 1, 3, 5)
        frames = split.unsqueeze(4).expand(-1, -1, -1, -1, self.visual.temporal_patch_size, -1, -1)
        return frames.reshape(len(tiles) * MERGE * MERGE, -1)

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[torch.Tensor, int]:
        stock = super().get_mrope_input_positions
        if not any(FRAME in (feature.data or ()) for feature in mm_features):
            return stock(input_tokens, mm_features)
        parts: list[torch.Tensor] = []
        begin = start = 0
        pending: list[Any] = []

        def read(end: int) -> None:
            """Add the positions of text, pictures and videos up to `end`, as vLLM numbers them."""
            nonlocal begin, start
            shifted = [
                replace(feature, mm_position=replace(feature.mm_position, offset=feature.mm_position.offset - begin))
                for feature in pending
            ]
            if end > begin:
                positions = stock(input_tokens[begin:end], shifted)[0] + start
                start = int(positions.max()) + 1
                parts.append(positions.clamp(max=self._rotary_rows - 1))
            begin = end
            pending.clear()

        for feature in sorted(mm_features, key=lambda feature: feature.mm_position.offset):
            if FRAME not in (feature.data or ()):
                pending.append(feature)
                continue
            read(feature.mm_position.offset)
            rows, cols, count, _ = feature.data[FRAME].data.tolist()
            parts.append(token_rows(feature.data[REGIONS].data, start, self._rotary_rows))
            begin, start = begin + count, start + max(rows, cols)
        read(len(input_tokens))
        longest = self._rotary_rows - self.model_config.max_model_len
        return torch.cat(parts, dim=1), min(start - len(input_tokens), longest)


def _with_packets(stock: type, info: type) -> Any:
    """Return a subclass of one of vLLM's model classes, with its processing info, that also takes packets."""
    model = type(f"Sparse{stock.__name__}", (SparseTokens, stock), {"__module__": __name__})
    info = type(f"Sparse{info.__name__}", (PacketInfo, info), {"__module__": __name__})
    return MULTIMODAL_REGISTRY.register_processor(PacketProcessor, info=info, dummy_inputs=Qwen3VLDummyInputsBuilder)(
        model
    )


SparseQwen3VL = _with_packets(Qwen3VLForConditionalGeneration, Qwen3VLProcessingInfo)
SparseQwen3VLMoe = _with_packets(Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeProcessingInfo)
SparseQwen35 = _with_packets(Qwen3_5ForConditionalGeneration, Qwen3_5ProcessingInfo)
SparseQwen35Moe = _with_packets(Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeProcessingInfo)
