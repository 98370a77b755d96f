"""The bundled model's shape, and its loss on a batch.

It learns through the same sparse encoder and at the same positions that answers are given with. A
linear head on every visual token says what that token shows; without this the model stays on a plateau for long. It is
not part of what is saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from arr_coc.qwen.positions import after_frame, text_positions, visual_positions
from arr_coc.qwen.vision import VisualTokens, encode_regions
from training.batches import IGNORED, Batch, Prompter
from training.tokenizer import SPECIAL_TOKENS, special_ids
from training.views import TARGETS, UNKNOWN

VOCABULARY = 512
CONTEXT_TOKENS = 8192
_WIDTH = 192

_BACKGROUND_WEIGHT = 0.15
_TARGET_WEIGHTS = {"shape": 3.0, "colour": 1.0, "movement": 1.0, "place": 1.0, "tens": 1.0, "units": 1.0, "order": 1.0}
"""Shapes take longest to learn."""


def scenes_config() -> Qwen3VLConfig:
    """About five million parameters: four blocks of vision, four of language, 192 wide."""
    end = SPECIAL_TOKENS.index("<|im_end|>")
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": _WIDTH,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": CONTEXT_TOKENS,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [12, 10, 10],
            "mrope_interleaved": True,
        },
        "eos_token_id": end,
        "bos_token_id": None,
        "pad_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
    }
    vision = {
        "depth": 4,
        "hidden_size": _WIDTH,
        "intermediate_size": 512,
        "num_heads": 3,
        "patch_size": 16,
        "out_hidden_size": _WIDTH,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [1],
    }
    marks = {"arr_coc_levels": True, "arr_coc_world": "drawn scenes"}
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **special_ids(), **marks)


def new_model(seed: int) -> Any:
    """The stock model with fresh weights."""
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(scenes_config())
    _spread_weights(model)
    model.generation_config.eos_token_id = [SPECIAL_TOKENS.index("<|im_end|>"), SPECIAL_TOKENS.index("<|endoftext|>")]
    model.generation_config.pad_token_id = SPECIAL_TOKENS.index("<|endoftext|>")
    return model


@torch.no_grad()
def _spread_weights(model: Any) -> None:
    """Starts so narrow a model faster than the stock 0.02 everywhere, which leaves places and attention faint.

    Linear layers keep the variance of what they get, those that write to the residual stream write a third of it, and
    the position grid begins as smooth waves.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            writes = name.endswith(("proj.weight", "linear_fc2.weight")) and "merger" not in name
            writes = writes and not name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
            nn.init.normal_(parameter, std=(0.35 if writes else 1.0) * parameter.shape[1] ** -0.5)
    nn.init.normal_(model.model.language_model.embed_tokens.weight, std=0.1)
    visual = model.model.visual
    nn.init.normal_(visual.patch_embed.proj.weight, std=768**-0.5)
    side = visual.num_grid_per_side
    phase = torch.linspace(0, torch.pi, side)[:, None] * torch.arange(1, 7)
    wave = torch.cat([phase.cos(), phase.sin()], dim=1)
    waves = torch.cat([wave.repeat_interleave(side, 0), wave.repeat(side, 1)], dim=1)
    visual.pos_embed.weight.copy_(waves @ torch.randn(waves.shape[1], _WIDTH) * (0.5 * waves.shape[1] ** -0.5))


@dataclass(frozen=True, slots=True)
class Losses:
    """What is minimised, its two parts, and the share of answer tokens that are right; None where nothing was asked."""

    total: torch.Tensor
    answer: float | None
    token: float
    right_share: float | None


class Learner(nn.Module):
    """The model and the head that is dropped later."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.head = nn.Linear(_WIDTH, sum(count + 1 for count in TARGETS.values()))
        prompter = Prompter()
        self._open, self._close = prompter.head, prompter.close

    def forward(self, batch: Batch, answers: bool = True) -> Losses:
        """The losses on a batch; without `answers` of its visual tokens only, which takes half the time."""
        visual = encode_regions(self.model.model.visual, batch.pixels, batch.regions, batch.grid)
        targets = batch.targets.long()
        depths = (visual.embeds, *visual.deepstack)
        token_loss = torch.stack([self._token_loss(embeds, targets) for embeds in depths]).mean()
        if not answers:
            return Losses(token_loss, None, token_loss.item(), None)
        logits = self._answers(batch, visual)
        labels = batch.labels[..., 1:].flatten()
        learned = labels != IGNORED
        logits = logits[:, :, :-1].flatten(0, 2)[learned]
        answer_loss = F.cross_entropy(logits.float(), labels[learned])
        right = (logits.argmax(-1) == labels[learned]).float().mean()
        return Losses(answer_loss + token_loss, answer_loss.item(), token_loss.item(), right.item())

    def _token_loss(self, embeds: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Each target's own cross-entropy; its last class is "nothing to know", which counts little."""
        total = embeds.new_zeros((), dtype=torch.float32)
        parts = self.head(embeds).float().split([count + 1 for count in TARGETS.values()], dim=-1)
        for index, ((name, count), part) in enumerate(zip(TARGETS.items(), parts, strict=True)):
            wanted = targets[..., index]
            wanted = torch.where(wanted == UNKNOWN, count, wanted)
            weight = torch.ones(count + 1)
            weight[count] = _BACKGROUND_WEIGHT
            loss = F.cross_entropy(part.flatten(0, 1), wanted.flatten(), weight)
            total = total + _TARGET_WEIGHTS[name] * loss
        return total / sum(_TARGET_WEIGHTS.values())

    def _answers(self, batch: Batch, visual: VisualTokens) -> torch.Tensor:
        """Logits [B, Q, S, vocabulary]: all questions about a picture share its tokens and do not see each other."""
        images, questions, steps = batch.ids.shape
        language = self.model.model.language_model
        tokens = batch.regions.shape[1]
        head = language.embed_tokens(torch.tensor([self._open])).expand(images, -1, -1)
        close = language.embed_tokens(torch.tensor([self._close])).expand(images, -1, -1)
        asked = language.embed_tokens(batch.ids.flatten(1))
        visual_at = slice(len(self._open), len(self._open) + tokens)
        shared = visual_at.stop + len(self._close)
        shown = torch.zeros(images, shared + questions * steps, dtype=torch.bool)
        shown[:, visual_at] = True
        hidden = language(
            inputs_embeds=torch.cat([head, visual.embeds.to(head.dtype), close, asked], dim=1),
            position_ids=self._positions(batch),
            attention_mask=_question_mask(shared, questions, steps),
            visual_pos_masks=shown,
            deepstack_visual_embeds=[rows.flatten(0, 1) for rows in visual.deepstack],
            use_cache=False,
        ).last_hidden_state[:, shared:]
        logits: torch.Tensor = self.model.lm_head(hidden)
        return logits.view(images, questions, steps, -1)

    def _positions(self, batch: Batch) -> torch.Tensor:
        """M-RoPE rows float32 [3, B, L]; every question begins where the first one does."""
        images, questions, steps = batch.ids.shape
        start = len(self._open)
        resumed = after_frame(start, batch.grid)
        after = text_positions(resumed, len(self._close) + steps)
        close, asked = after.split([len(self._close), steps], dim=1)
        pieces = (text_positions(0, start), None, close, asked.repeat(1, questions))
        shown = visual_positions(start, batch.regions)
        return torch.cat([shown if piece is None else piece[:, None].expand(3, images, -1) for piece in pieces], dim=-1)


def _question_mask(shared: int, questions: int, steps: int) -> torch.Tensor:
    """Causal within the shared part and within each question; bool [1, 1, L, L], True where a row may look."""
    length = shared + questions * steps
    place = torch.arange(length)
    question = torch.where(place < shared, -1, (place - shared) // steps)
    allowed = (place[:, None] >= place[None]) & ((question[None] < 0) | (question[:, None] == question[None]))
    return allowed[None, None]
