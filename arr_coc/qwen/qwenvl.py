"""`QwenVL`: the loaded model; rotation and capture of keys.

A rotation for another place could also be made from rotated keys, but in bfloat16 each one would add its own rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from arr_coc.layer import ARRCOCLayer
from arr_coc.layer_weights import new_layer
from arr_coc.qwen.checkpoint import THINKING_MARKS, unseen_words
from arr_coc.qwen.families import SUPERSEDED_KEPT, DecoderLayers, ModelFamily
from arr_coc.qwen.preprocess import Preprocessing
from arr_coc.qwen.yes_no import CONFIG_KEY, Calibration
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.embedding_axes import EmbeddingAxes
from arr_coc.types import QueryEmbedding

TEXTS_KEPT = 128
"""Twice the clients of a server; token ids of so many texts are kept."""


@dataclass(frozen=True)
class QwenVL:
    """Model, tokenizer and preprocessing.

    `model` is the stock transformers model, in eval mode; `model_id` names its weights; `allocator` was trained for
    them, if one came with the model. `notices` as in `arr_coc.qwen.checkpoint.Checkpoint`. `small`: the dtype to
    which its weights were made smaller as they were loaded (`small_weights.py`).
    """

    model: Any
    tokenizer: Any
    preprocessing: Preprocessing
    model_id: str
    family: ModelFamily
    allocator: ARRCOCLayer | None = None
    notices: tuple[str, ...] = ()
    small: str | None = None

    @property
    def weights_dtype(self) -> str:
        """Name of the dtype of its weights, as `--dtype` has it."""
        return self.small or str(self.model.dtype).removeprefix("torch.")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the language model computes."""
        dtype: torch.dtype = torch.float32 if self.small else self.language_model.embed_tokens.weight.dtype
        return dtype

    @property
    def realiser(self) -> RelevanceRealiser | None:
        """The trained allocator's scorers and their balance."""
        return None if self.allocator is None else self.allocator.realiser

    def new_allocator(self, **options: Any) -> ARRCOCLayer:
        """An untrained allocator for this model's questions; its weights are random, by torch's own generator.

        `options` are fields of `ARRCOCConfig`, errors as `ARRCOCLayer`.
        """
        layer = new_layer(self.model.get_input_embeddings().weight, levels=self.knows_levels, **options)
        layer.realiser.trained_for = self.model_id
        return layer

    @property
    def tower(self) -> Any:
        """The vision tower."""
        return self.model.model.visual

    @property
    def language_model(self) -> Any:
        """The decoder without its output head."""
        return self.model.model.language_model

    @property
    def vision_device(self) -> torch.device:
        return self.tower.patch_embed.proj.weight.device

    @cached_property
    def device(self) -> torch.device:
        """Device of the language model's embeddings, on which prompts are made."""
        return self.language_model.embed_tokens.weight.device

    @cached_property
    def layers(self) -> DecoderLayers:
        """Numbers of the decoder's layers by kind."""
        return self.family.decoder_layers(self.language_model.config.to_dict())

    @cached_property
    def attentions(self) -> dict[int, Any]:
        """Attention of the decoder's layers that attend, by their numbers."""
        return {number: self.language_model.layers[number].self_attn for number in self.layers.attending}

    def kept_tokens(self, shown: int) -> int:
        """Return the most visual tokens in the cache of a group of pictures that shows so many: superseded ones stay in
        front of a recurrent layer, as many at most."""
        return shown * (SUPERSEDED_KEPT if self.family.recurrent else 1)

    @cached_property
    def decodes_plainly(self) -> bool:
        """True if the decoder is on one device with nothing hooked in between, as a device map of several would, and
        every attention sees all tokens before its own."""
        devices = {
            parameter.device for parameter in [*self.language_model.parameters(), *self.model.lm_head.parameters()]
        }
        hooked = any(hasattr(module, "_hf_hook") for module in self.language_model.modules())
        sliding = any(getattr(attention, "sliding_window", None) for attention in self.attentions.values())
        return len(devices) == 1 and not hooked and not sliding

    @property
    def knows_levels(self) -> bool:
        """True if it was trained with tokens of coarse levels."""
        return bool(getattr(self.model.config, "arr_coc_levels", False))

    @property
    def embedding_axes(self) -> EmbeddingAxes | None:
        """Axes of its allocator, where that reads embeddings of tiles as channels."""
        return None if self.realiser is None else self.realiser.axes

    @property
    def knows_wide(self) -> bool:
        """True if it was trained with wide and tall tokens."""
        return bool(getattr(self.model.config, "arr_coc_wide", False))

    @property
    def known_world(self) -> str | None:
        """Name of the only world that it knows, such as "drawn scenes"; None for a general model."""
        return getattr(self.model.config, "arr_coc_world", None)

    @cached_property
    def yes_no_calibration(self) -> Calibration:
        """Calibration of its odds of yes. Raises ModelError where its configuration holds something else."""
        return Calibration.read(getattr(self.model.config, CONFIG_KEY, None), self.model_id)

    @property
    def max_context_tokens(self) -> int:
        return int(self.model.config.get_text_config().max_position_embeddings)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an answer: the generation configuration's and the tokenizer's own."""
        configured = self.model.generation_config.eos_token_id
        ids = [configured] if isinstance(configured, int) else list(configured or ())
        return frozenset([*ids, self.tokenizer.eos_token_id]) - {None}

    @cached_property
    def thought_ids(self) -> tuple[int, int] | None:
        """The tokens that begin and end thoughts before an answer; None if the model's template knows none."""
        ids = [self.token_ids(mark) for mark in THINKING_MARKS]
        known = THINKING_MARKS[0] in (self.tokenizer.chat_template or "") and all(len(one) == 1 for one in ids)
        return (ids[0][0], ids[1][0]) if known else None

    def opens_thoughts(self, ids: Sequence[int]) -> bool:
        """Return True if the thoughts that a prompt's last tokens begin are not ended by them."""
        marks = [token for token in ids if token in (self.thought_ids or ())]
        return bool(marks) and self.thought_ids is not None and marks[-1] == self.thought_ids[0]

    def unseen_words(self, question: str) -> tuple[str, ...]:
        """Words of a question that it has never seen, where it only knows a small world; none of a general model."""
        return () if self.known_world is None else unseen_words(question, self.plain_token_ids)

    def token_ids(self, text: str) -> list[int]:
        """Token ids of text with its special tokens read as such."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def plain_token_ids(self, text: str) -> list[int]:
        """Token ids of text from outside: "<|im_end|>" in it is eight characters, not the end of a turn.

        Those of the last texts are kept: a question is asked about one frame after another.
        """
        known = self._plain_ids
        if text not in known:
            if len(known) >= TEXTS_KEPT:
                known.clear()
            known[text] = tuple(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
        return list(known[text])

    @cached_property
    def _plain_ids(self) -> dict[str, tuple[int, ...]]:
        return {}

    @torch.inference_mode()
    def embed(self, ids: list[int]) -> torch.Tensor:
        """Embeddings [len(ids), D] of token ids, in the model's dtype."""
        rows = self.language_model.embed_tokens(torch.tensor(ids, dtype=torch.long, device=self.device))
        return rows.detach()  # adapters of peft make it require a gradient, even here

    def embed_query(self, text: str) -> QueryEmbedding:
        """The question as the embedding table sees it."""
        tokens = self.embed(self.plain_token_ids(text)).float().cpu().numpy()
        return QueryEmbedding(text, tokens, self.model_id)


def rotation(qwen: QwenVL, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines float32 [L, rotated numbers of a head] of M-RoPE positions float32 [3, L] (t, h, w)."""
    language_model = qwen.language_model
    cos, sin = language_model.rotary_emb(torch.empty(0, device=qwen.device), positions[:, None].to(qwen.device))
    return _composed(language_model, cos), _composed(language_model, sin)


def rotate(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Queries or keys [..., head_dim] rotated in float32, in the dtype in which they came."""
    return rotate_native(keys.float(), cos.to(keys.device), sin.to(keys.device)).to(keys.dtype)


def rotate_native(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Queries or keys [..., head_dim] rotated in the dtype in which they came, as the stock decoder does. With `cos`
    and `sin` for fewer numbers, so many of them are rotated."""
    if (rotated := cos.shape[-1]) < rows.shape[-1]:
        return torch.cat([rotate_native(rows[..., :rotated], cos, sin), rows[..., rotated:]], dim=-1)
    first, second = rows.chunk(2, dim=-1)
    return rows * cos + torch.cat([-second, first], dim=-1) * sin


def _composed(language_model: Any, rows: torch.Tensor) -> torch.Tensor:
    """Rows [1, L, head_dim]; older transformers leave the three axes of Qwen2-VL apart, [3, 1, L, head_dim]."""
    if rows.ndim == 3:
        return rows[0]
    section = language_model.config.rope_scaling["mrope_section"]
    parts = rows[:, 0].split([*section, *section], dim=-1)
    return torch.cat([part[index % 3] for index, part in enumerate(parts)], dim=-1)
