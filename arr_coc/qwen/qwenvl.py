"""A loaded Qwen-VL model: what the rest of the adapter needs of it, under one roof."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from arr_coc.qwen.calibration import CONFIG_KEY, Calibration
from arr_coc.qwen.families import Family
from arr_coc.qwen.known_words import unseen_words
from arr_coc.qwen.preprocess import Preprocessing
from arr_coc.relevance import RelevanceRealiser
from arr_coc.types import QueryEmbedding


@dataclass(frozen=True)
class QwenVL:
    """Model, tokenizer and preprocessing.

    `model` is the stock transformers model, in eval mode; `model_id` names its weights; `realiser` is the allocator
    that was trained for them, where one came with the model.
    """

    model: Any
    tokenizer: Any
    preprocessing: Preprocessing
    model_id: str
    family: Family
    realiser: RelevanceRealiser | None = None

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
        """Where the language model's embeddings are, and so where prompts are made."""
        return self.language_model.embed_tokens.weight.device

    @cached_property
    def decodes_plainly(self) -> bool:
        """Whether the decoder lies on one device with nothing hooked in between, as a device map of several would, and
        every layer sees all tokens before its own."""
        devices = {
            parameter.device for parameter in [*self.language_model.parameters(), *self.model.lm_head.parameters()]
        }
        hooked = any(hasattr(module, "_hf_hook") for module in self.language_model.modules())
        sliding = any(getattr(layer.self_attn, "sliding_window", None) for layer in self.language_model.layers)
        return len(devices) == 1 and not hooked and not sliding

    @property
    def knows_levels(self) -> bool:
        """Whether it was trained with tokens of coarse levels."""
        return bool(getattr(self.model.config, "arr_coc_levels", False))

    @property
    def known_world(self) -> str | None:
        """What it only knows, where it is not a general model: "drawn scenes"."""
        return getattr(self.model.config, "arr_coc_world", None)

    @cached_property
    def yes_no_calibration(self) -> Calibration:
        """How its odds of yes are to be read. Raises ModelError where its configuration holds something else."""
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

    def unseen_words(self, question: str) -> tuple[str, ...]:
        """Words of a question that it has never seen, where it only knows a small world; none of a general model."""
        return () if self.known_world is None else unseen_words(question, self.plain_token_ids)

    def token_ids(self, text: str) -> list[int]:
        """Token ids of text with its special tokens read as such."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def plain_token_ids(self, text: str) -> list[int]:
        """Token ids of text from outside: "<|im_end|>" in it is eight characters, not the end of a turn."""
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    @torch.inference_mode()
    def embed(self, ids: list[int]) -> torch.Tensor:
        """Embeddings [len(ids), D] of token ids, in the model's dtype."""
        return self.language_model.embed_tokens(torch.tensor(ids, dtype=torch.long, device=self.device))

    def embed_query(self, text: str) -> QueryEmbedding:
        """The question as the embedding table sees it."""
        tokens = self.embed(self.plain_token_ids(text)).float().cpu().numpy()
        return QueryEmbedding(text, tokens, self.model_id)
