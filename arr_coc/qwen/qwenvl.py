"""`QwenVL`: the loaded model; rotation of keys.

Rotated keys could be rotated again to another position, but in bfloat16 each rotation adds rounding errors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from arr_coc.layer import ARRCOCLayer
from arr_coc.layer_weights import new_layer
from arr_coc.qwen.checkpoint import THINKING_MARKS, unseen_words
from arr_coc.qwen.checkpoint_decoding import CheckpointDecoding
from arr_coc.qwen.families import DecoderLayers, ModelFamily
from arr_coc.qwen.grounding import NAMING_TOKENS, THOUSANDTHS
from arr_coc.qwen.preprocess import Preprocessing
from arr_coc.qwen.yes_no import CONFIG_KEY, Calibration
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.embedding_axes import EmbeddingAxes
from arr_coc.types import TILE_PX, QueryEmbedding, TileGrid

TEXTS_KEPT = 128
"""Number of texts whose token ids are cached: twice the clients of a server."""

_INSIDE_THINKING_MARK = re.compile("|".join(f"(?<={mark[0]})(?={mark[1:]})" for mark in THINKING_MARKS))


@dataclass(frozen=True)
class QwenVL:
    """Model, tokenizer and preprocessing.

    `model` is the stock transformers model, in eval mode; `model_id` names its weights; `allocator` was trained for
    them; None if the model has none. `notices` as in `arr_coc.qwen.checkpoint.Checkpoint`. `small`: the dtype to which
    its weights were reduced when it was loaded (`small_weights/`).
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
        """Name of the dtype of its weights, as for `--dtype`."""
        return self.small or str(self.model.dtype).removeprefix("torch.")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the language model computes."""
        dtype: torch.dtype = torch.float32 if self.small else self.language_model.embed_tokens.weight.dtype
        return dtype

    @property
    def realiser(self) -> RelevanceRealiser | None:
        """The trained allocator's scorers and their balance."""
        if self.allocator is None:
            return None
        return self.allocator.realiser

    def new_allocator(self, **options: Any) -> ARRCOCLayer:
        """Return an untrained allocator for this model's questions; its weights are drawn by torch's global generator.

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
        """Indices of the decoder's layers by kind."""
        return self.family.decoder_layers(self.language_model.config.to_dict())

    @cached_property
    def attentions(self) -> dict[int, Any]:
        """Attention modules of the decoder by layer index; recurrent layers have none."""
        return {number: self.language_model.layers[number].self_attn for number in self.layers.attending}

    @property
    def step_tokens(self) -> int:
        """Number of tokens of one step of work that may be paused.

        On a CPU such a step of Qwen3-VL-2B's dimensions takes 10 to 40 ms. A constant, as the size of a step changes
        the rounding of its result, which must not depend on the machine's load.
        """
        return 32 if self.device.type == "cpu" else 1024

    @cached_property
    def decodes_plainly(self) -> bool:
        """True if the decoder is on one device without hooks, which a device map of several devices adds, and every
        attention layer sees all earlier tokens."""
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
        """Axes of its allocator, if that reads embeddings of tiles as channels; else None."""
        if self.realiser is None:
            return None
        return self.realiser.axes

    @property
    def knows_wide(self) -> bool:
        """True if it was trained with wide and tall tokens."""
        return bool(getattr(self.model.config, "arr_coc_wide", False))

    @property
    def known_world(self) -> str | None:
        """Name of the only world that it was trained on, such as "drawn scenes"; None for a general model."""
        return getattr(self.model.config, "arr_coc_world", None)

    @cached_property
    def yes_no_calibration(self) -> Calibration:
        """Calibration of its odds of yes. Raises ModelError if the value in its configuration is invalid."""
        return Calibration.read(getattr(self.model.config, CONFIG_KEY, None), self.model_id)

    @property
    def max_context_tokens(self) -> int:
        return int(self.model.config.get_text_config().max_position_embeddings)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an answer: the generation configuration's and the tokenizer's own."""
        configured = self.model.generation_config.eos_token_id
        if isinstance(configured, int):
            ids = [configured]
        else:
            ids = list(configured or ())
        return frozenset([*ids, self.tokenizer.eos_token_id]) - {None}

    @property
    def checkpoint_decoding(self) -> CheckpointDecoding:
        """Decoding that its folder asks for. Raises ModelError for values that cannot be used."""
        return CheckpointDecoding.read(self.model.generation_config.to_dict(), self.model_id)

    @cached_property
    def thought_ids(self) -> tuple[int, int] | None:
        """The tokens that begin and end thoughts before an answer; None if the model's template has no thoughts."""
        ids = [self.token_ids(mark) for mark in THINKING_MARKS]
        has_marks = THINKING_MARKS[0] in (self.tokenizer.chat_template or "") and all(
            len(mark_ids) == 1 for mark_ids in ids
        )
        return (ids[0][0], ids[1][0]) if has_marks else None

    @cached_property
    def naming_tokens(self) -> dict[int, str]:
        """Special tokens around names and boxes in answers, which stay in their text; empty if it has none."""
        ids = {mark: self.token_ids(mark) for mark in NAMING_TOKENS}
        marks = {mark_ids[0]: mark for mark, mark_ids in ids.items() if len(mark_ids) == 1}
        return {token: mark for token, mark in marks.items() if self.tokenizer.convert_ids_to_tokens(token) == mark}

    def extent(self, grid: TileGrid) -> tuple[float, float]:
        """Return width and height of a frame without its padding, in the coordinates of places in answers: the model is
        given the padded frame."""
        if self.family.coordinates == "thousandths":
            return (
                THOUSANDTHS * grid.width_px / grid.padded_width_px,
                THOUSANDTHS * grid.height_px / grid.padded_height_px,
            )
        scale = self.preprocessing.tile_px / TILE_PX
        return scale * grid.width_px, scale * grid.height_px

    def opens_thoughts(self, ids: Sequence[int]) -> bool:
        """Return True if the last tokens of a prompt, `ids`, begin thoughts and do not end them."""
        marks = [token for token in ids if token in (self.thought_ids or ())]
        return bool(marks) and self.thought_ids is not None and marks[-1] == self.thought_ids[0]

    def unseen_words(self, question: str) -> tuple[str, ...]:
        """Return the words of a question that a model of a small world has never seen; empty for a general model."""
        if self.known_world is None:
            return ()
        return unseen_words(question, self.plain_token_ids)

    def token_ids(self, text: str) -> list[int]:
        """Return the token ids of text; special tokens in it are parsed."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def plain_token_ids(self, text: str) -> list[int]:
        """Return the token ids of untrusted text: "<|im_end|>" in it is ten characters, not the end of a turn, and
        "<think>" begins no thoughts.

        Ids of recent texts are cached, as one question is asked about many frames.
        """
        cache = self._plain_ids
        if text not in cache:
            if len(cache) >= TEXTS_KEPT:
                cache.clear()
            # The marks of thoughts are tokens, but not special ones, which the tokenizer splits.
            parts = _INSIDE_THINKING_MARK.split(text)
            cache[text] = tuple(
                token
                for part in parts
                for token in self.tokenizer(part, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            )
        return list(cache[text])

    @cached_property
    def _plain_ids(self) -> dict[str, tuple[int, ...]]:
        return {}

    @torch.inference_mode()
    def embed(self, ids: list[int]) -> torch.Tensor:
        """Return the embeddings [len(ids), D] of token ids, in the model's dtype."""
        rows = self.language_model.embed_tokens(torch.tensor(ids, dtype=torch.long, device=self.device))
        return rows.detach()  # adapters of peft make the rows require a gradient, even in inference mode

    def embed_query(self, text: str) -> QueryEmbedding:
        """Return a question's rows of the embedding table."""
        tokens = self.embed(self.plain_token_ids(text)).float().cpu().numpy()
        return QueryEmbedding(text, tokens, self.model_id)


def rotation(qwen: QwenVL, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines float32 [L, rotated numbers of a head] of M-RoPE positions float32 [3, L] (t, h, w)."""
    language_model = qwen.language_model
    cos, sin = language_model.rotary_emb(torch.empty(0, device=qwen.device), positions[:, None].to(qwen.device))
    return _composed(language_model, cos), _composed(language_model, sin)


def rotate(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate queries or keys in float32; the result has their dtype.

    Args:
        keys: [..., head_dim].
        cos: Cosines of their positions, broadcast to `keys`.
        sin: Sines of their positions, broadcast to `keys`.
    """
    return rotate_native(keys.float(), cos.to(keys.device), sin.to(keys.device)).to(keys.dtype)


def small_attention_dtype(projection: Any) -> torch.dtype | None:
    """Return the dtype of attention among the rows that a linear layer with small weights gives, which has one
    (`SmallLinear.attention_dtype`); None for any other layer, whose rows stay as they are."""
    return getattr(projection, "attention_dtype", None)


def rotate_native(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate queries or keys in their dtype, as the stock decoder does.

    Args:
        rows: [..., head_dim].
        cos: Cosines of their positions, broadcast to `rows`. If they have fewer numbers than a head, only the first
            numbers of each head are rotated.
        sin: Sines of their positions, likewise.
    """
    if (rotated := cos.shape[-1]) < rows.shape[-1]:
        return torch.cat([rotate_native(rows[..., :rotated], cos, sin), rows[..., rotated:]], dim=-1)
    first, second = rows.chunk(2, dim=-1)
    return rows * cos + torch.cat([-second, first], dim=-1) * sin


def _composed(language_model: Any, rows: torch.Tensor) -> torch.Tensor:
    """Return rows [L, head_dim] of [1, L, head_dim], or of [3, 1, L, head_dim], as older transformers keep the three
    axes of Qwen2-VL separate."""
    if rows.ndim == 3:
        return rows[0]
    section = language_model.config.rope_scaling["mrope_section"]
    parts = rows[:, 0].split([*section, *section], dim=-1)
    return torch.cat([part[index % 3] for index, part in enumerate(parts)], dim=-1)
