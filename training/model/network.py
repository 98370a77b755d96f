"""Configuration, losses, inheriting weights.

It learns through the same sparse encoder and at the same positions that answers are given with. Linear heads on every
visual token say what that token shows; without this the model stays on a plateau for long. One of them spells the text
that the token belongs to, in the language model's own embeddings of the characters, so that answers need only copy
them. Another gives, before the last layer and before the first word of an answer, the places of the things that are
asked about: to compare places, both must be found first. The heads are not part of what is saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from arr_coc.errors import ModelError, ModelNotFound
from arr_coc.qwen.preprocess import after_frame, text_positions, visual_positions
from arr_coc.qwen.vision import VisualTokens, encode_regions
from training.model.batches import ASKED_THINGS, IGNORED, Batch, Prompter
from training.model.tokenizer import SPECIAL_TOKENS, scenes_tokenizer, special_ids
from training.model.views import CHARACTERS, PLACES_A_SIDE, SPELLED, TARGETS, UNKNOWN

_EMBEDDINGS = "model.language_model.embed_tokens.weight"


@torch.no_grad()
def begin_with(model: Any, folder: Path) -> None:
    """Copy every weight; a word's embedding follows the word to its id, a new word begins as the mean of its pieces.

    Raises ModelNotFound if the folder holds no model, ModelError if it is one of other dimensions.
    """
    shards = sorted(folder.glob("model*.safetensors"))
    if not shards:
        raise ModelNotFound(f"{folder} holds no model*.safetensors")
    weights = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    state = model.state_dict()
    for name, tensor in weights.items():
        if name == _EMBEDDINGS:
            _carry_words(state[name], tensor.float(), Tokenizer.from_file(str(folder / "tokenizer.json")))
        elif name in state and state[name].shape == tensor.shape:
            state[name].copy_(tensor)
        else:
            raise ModelError(f"{folder} does not fit this version's model: {name} is {list(tensor.shape)}")


def _carry_words(embeddings: torch.Tensor, before: torch.Tensor, tokenizer: Tokenizer) -> None:
    if before.shape == embeddings.shape:
        embeddings.copy_(before)  # rows of no word too: an allocator is known by all of them
    vocabulary = scenes_tokenizer()
    for word, number in vocabulary.get_vocab().items():
        old_id = tokenizer.token_to_id(word)
        pieces = [old_id] if old_id is not None else tokenizer.encode(vocabulary.decode([number])).ids
        if pieces:
            embeddings[number] = before[pieces].mean(dim=0)


VOCABULARY = 640
CONTEXT_TOKENS = 8192
_WIDTH = 192

_LOCATING_LAYER = 2
"""The layer of the language model after which the places of the things that a question is about must be known."""

_PLACES = 2 * 2 * ASKED_THINGS
"""Across and down, of every thing, in the first frame and in the last."""

_BACKGROUND_WEIGHT = 0.1
_SHOWN = {name: count for name, count in TARGETS.items() if name not in SPELLED}
_TARGET_WEIGHTS = {"what": 2.0, "left": 2.0, "middle": 2.0, "right": 2.0}
"""Of the targets that take longest to learn; the others count 1."""


def scenes_config(*, whole: bool = False) -> Qwen3VLConfig:
    """About five million parameters: four blocks of vision, four of language, 192 wide.

    `whole`: of a model that learns whole pictures only, so it does not claim to know coarse tokens.
    """
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
    marks: dict[str, Any] = {"arr_coc_world": "drawn scenes"}
    if not whole:
        marks["arr_coc_levels"] = True
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **special_ids(), **marks)


def new_model(seed: int, *, whole: bool = False) -> Any:
    """The stock model with fresh weights; `whole` as in `scenes_config`."""
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(scenes_config(whole=whole))
    _spread_weights(model)
    model.generation_config.eos_token_id = [SPECIAL_TOKENS.index("<|im_end|>"), SPECIAL_TOKENS.index("<|endoftext|>")]
    model.generation_config.pad_token_id = SPECIAL_TOKENS.index("<|endoftext|>")
    return model


@torch.no_grad()
def _spread_weights(model: Any) -> None:
    """Initialise a narrow model to start faster than by 0.02 everywhere, which leaves places and attention faint.

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
    """Loss that is minimised, its parts, and the share of answer tokens that are right; None if nothing was
    asked."""

    total: torch.Tensor
    answer: float | None
    place: float | None
    token: float
    right_share: float | None


class _Kept:
    """A hook that keeps what a layer gives until it is taken."""

    def __init__(self) -> None:
        self._hidden: torch.Tensor | None = None

    def __call__(self, layer: nn.Module, inputs: Any, hidden: torch.Tensor) -> None:
        self._hidden = hidden

    def take(self) -> torch.Tensor:
        hidden, self._hidden = self._hidden, None
        assert hidden is not None, "the layer has not run"
        return hidden


class Learner(nn.Module):
    """The model and the head that is dropped later."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.head = nn.Linear(_WIDTH, sum(count + 1 for count in _SHOWN.values()))
        self.speller = nn.Linear(_WIDTH, len(SPELLED) * (_WIDTH + 1))
        self.locator = nn.Linear(_WIDTH, _PLACES * (PLACES_A_SIDE + 1))
        self._located = _Kept()
        model.model.language_model.layers[_LOCATING_LAYER].register_forward_hook(self._located)
        prompter = Prompter()
        self.register_buffer("_characters", torch.tensor(prompter.ids(CHARACTERS)), persistent=False)
        self._before, self._open, self._close = prompter.head, prompter.open, prompter.close
        self._encode = encode_regions
        self._shown_loss, self._spelt_loss = self._token_loss, self._spelling_loss

    def compile_parts(self) -> None:
        """Compiles what steps spend their time on, for any shapes: minutes at first, then 0.6 of the time a step."""
        self._encode = torch.compile(self._encode, dynamic=True)
        self._shown_loss = torch.compile(self._token_loss, dynamic=True)
        self._spelt_loss = torch.compile(self._spelling_loss, dynamic=True)
        for layer in self.model.model.language_model.layers:
            layer.compile(dynamic=True)

    def forward(self, batch: Batch) -> Losses:
        """The losses on a batch: of its visual tokens, and of its answers if it asks anything."""
        visual = self.see(batch)
        targets = batch.targets.flatten(0, 1).long()
        depths = (visual.embeds, *visual.deepstack)
        token_loss = torch.stack([self._shown_loss(embeds, targets) for embeds in depths]).mean()
        token_loss = token_loss + self._spelt_loss(visual.embeds, targets)
        if batch.ids.numel() == 0:
            return Losses(token_loss, None, None, token_loss.item(), None)
        logits = self._answers(batch, visual)
        labels = batch.labels[:, 1:].flatten()
        has_label = labels != IGNORED
        logits = logits[:, :-1].flatten(0, 1)[has_label]
        answer_loss = F.cross_entropy(logits.float(), labels[has_label])
        right = (logits.argmax(-1) == labels[has_label]).float().mean()
        place_loss = self._place_loss(batch, self._located.take())
        total = answer_loss + place_loss + token_loss
        return Losses(total, answer_loss.item(), place_loss.item(), token_loss.item(), right.item())

    def see(self, batch: Batch) -> VisualTokens:
        """The visual tokens of all frames, [C * F, K, D]; an overview and the rest each by themselves."""
        if batch.grids:
            return self._see_sizes(batch)
        regions, pixels = batch.regions.flatten(0, 1), batch.pixels.flatten(0, 1)
        overview = batch.overview
        parts = [slice(None, overview), slice(overview, None)] if 0 < overview < regions.shape[1] else [slice(None)]
        tower = self.model.model.visual
        encodings = [
            self._encode(tower, pixels[:, part].clone(), regions[:, part].clone(), batch.grid) for part in parts
        ]
        embeds = torch.cat([tokens.embeds for tokens in encodings], dim=1)
        return VisualTokens(
            embeds,
            tuple(torch.cat(rows, dim=1) for rows in zip(*(tokens.deepstack for tokens in encodings), strict=True)),
        )

    def _see_sizes(self, batch: Batch) -> VisualTokens:
        """The tokens of frames of several sizes, each encoded on its grid; those of padding are 0."""
        clips, most = len(batch.regions), batch.regions.shape[2]
        tower = self.model.model.visual
        frames = [
            self._encode(tower, batch.pixels[:, frame, :count].clone(), batch.regions[:, frame, :count].clone(), grid)
            for frame, (grid, count) in enumerate(batch.frames)
        ]

        def together(rows: Sequence[torch.Tensor]) -> torch.Tensor:
            padded = [F.pad(tokens, (0, 0, 0, most - tokens.shape[1])) for tokens in rows]
            return torch.stack(padded, dim=1).view(clips * len(rows), most, -1)

        deepstack = zip(*(tokens.deepstack for tokens in frames), strict=True)
        return VisualTokens(together([tokens.embeds for tokens in frames]), tuple(map(together, deepstack)))

    def _token_loss(self, embeds: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The weighted mean of what is shown: each target's own cross-entropy."""
        total = embeds.new_zeros((), dtype=torch.float32)
        parts = self.head(embeds).float().split([count + 1 for count in _SHOWN.values()], dim=-1)
        weights = 0.0
        for index, (name, part) in enumerate(zip(_SHOWN, parts, strict=True)):
            weight = _TARGET_WEIGHTS.get(name, 1.0)
            total = total + weight * _known_loss(part, targets[..., index])
            weights += weight
        return total / weights

    def _spelling_loss(self, embeds: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Loss of the spelling tokens: cross-entropy over the embeddings of the characters, mean of their places."""
        predictions, blank_logits = self.speller(embeds).unflatten(-1, (len(SPELLED), -1)).split([_WIDTH, 1], dim=-1)
        characters = self.model.model.language_model.embed_tokens(self._characters)
        logits = torch.cat([predictions @ characters.to(predictions.dtype).T, blank_logits], dim=-1).float()
        return _known_loss(logits, targets[..., -len(SPELLED) :])

    def _place_loss(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Loss of the places of the things that a question is about, predicted by the last token before each answer."""
        has_label = batch.labels != IGNORED
        last = (has_label[:, 1:] & ~has_label[:, :-1]).nonzero()[:, 1].view(batch.places.shape[:2])
        at = (hidden.shape[1] - batch.ids.shape[1] + last)[..., None].expand(-1, -1, hidden.shape[-1])
        logits = self.locator(hidden.gather(1, at)).float().unflatten(-1, (_PLACES, -1))
        places = batch.places.long()
        return _known_loss(logits, places) if bool((places != IGNORED).any()) else logits.sum() * 0

    def _answers(self, batch: Batch, visual: VisualTokens) -> torch.Tensor:
        """Logits [C, T, vocabulary]: all questions about a clip share its frames and do not see each other."""
        language = self.model.model.language_model
        clips = len(batch.ids)
        counts = [count for _, count in batch.frames]
        by_clip = visual.embeds.unflatten(0, (clips, len(counts)))
        before = self._text(self._before, clips, language)
        pieces, prompt = [before], _Prompt()
        prompt.add(len(self._before))
        for frame, tokens in enumerate(counts):
            pieces += [language.embed_tokens(batch.times[:, frame]), self._text(self._open, clips, language)]
            prompt.add(batch.times.shape[2] + len(self._open))
            pieces.append(by_clip[:, frame, :tokens])
            prompt.add(tokens, visual=True)
            pieces.append(self._text(self._close, clips, language))
            prompt.add(len(self._close))
        pieces.append(language.embed_tokens(batch.ids))
        hidden = language(
            inputs_embeds=torch.cat([piece.to(pieces[0].dtype) for piece in pieces], dim=1),
            position_ids=self._positions(batch),
            attention_mask=prompt.mask(batch.question_numbers),
            visual_pos_masks=prompt.visual(batch.question_numbers),
            deepstack_visual_embeds=[_shown(rows, clips, counts) for rows in visual.deepstack],
            use_cache=False,
        ).last_hidden_state[:, len(prompt) :]
        logits: torch.Tensor = self.model.lm_head(hidden)
        return logits

    def _text(self, ids: list[int], clips: int, language: Any) -> torch.Tensor:
        embeds: torch.Tensor = language.embed_tokens(torch.tensor([ids], device=self.head.weight.device))
        return embeds.expand(clips, -1, -1)

    def _positions(self, batch: Batch) -> torch.Tensor:
        """M-RoPE rows float32 [3, C, L]; every question begins at the position of the first."""
        clips, device = len(batch.ids), batch.ids.device

        def text(start: int, tokens: int) -> torch.Tensor:
            return text_positions(start, tokens, device)[:, None].expand(3, clips, -1)

        pieces, position = [text(0, len(self._before))], len(self._before)
        opening = batch.times.shape[2] + len(self._open)
        for frame, (grid, tokens) in enumerate(batch.frames):
            pieces.append(text(position, opening))
            position += opening
            pieces.append(visual_positions(position, batch.regions[:, frame, :tokens]))
            position = after_frame(position, grid)
            pieces.append(text(position, len(self._close)))
            position += len(self._close)
        pieces.append((position + _places_in_questions(batch.question_numbers)).float().expand(3, -1, -1))
        return torch.cat(pieces, dim=-1)


def _shown(rows: torch.Tensor, clips: int, counts: Sequence[int]) -> torch.Tensor:
    """The rows [C * F, K, D] of what is shown, clip by clip, without padding: [n, D]."""
    by_clip = rows.unflatten(0, (clips, len(counts)))
    return torch.cat([by_clip[:, frame, :count] for frame, count in enumerate(counts)], dim=1).flatten(0, 1)


def _places_in_questions(question_numbers: torch.Tensor) -> torch.Tensor:
    """Distance of each token from the first of its question: int64 [C, T]."""
    place = torch.arange(question_numbers.shape[1], device=question_numbers.device).expand_as(question_numbers)
    begins = torch.ones_like(question_numbers, dtype=torch.bool)
    begins[:, 1:] = question_numbers[:, 1:] != question_numbers[:, :-1]
    return place - (place * begins).cummax(dim=1).values


def _known_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy whose last class, "nothing to know", counts little, and without what is `IGNORED`."""
    background = logits.shape[-1] - 1
    classes = torch.where(targets == UNKNOWN, background, targets)
    balance = torch.ones(background + 1, device=logits.device)
    balance[background] = _BACKGROUND_WEIGHT
    return F.cross_entropy(logits.flatten(0, -2), classes.flatten(), balance, ignore_index=IGNORED)


class _Prompt:
    """Visual tokens of a packed prompt, up to its questions, and the keys that each sees."""

    def __init__(self) -> None:
        self._visual: list[bool] = []

    def __len__(self) -> int:
        return len(self._visual)

    def add(self, tokens: int, *, visual: bool = False) -> None:
        """Add `tokens` tokens."""
        self._visual += [visual] * tokens

    def visual(self, question_numbers: torch.Tensor) -> torch.Tensor:
        """Mask of visual tokens, bool [C, L + T], False for those of the questions [C, T]."""
        shared = torch.tensor(self._visual, device=question_numbers.device).expand(len(question_numbers), -1)
        return torch.cat([shared, torch.zeros_like(question_numbers, dtype=torch.bool)], dim=1)

    def mask(self, question_numbers: torch.Tensor) -> torch.Tensor:
        """True for keys that a row attends to: bool [C, 1, L + T, L + T]. Questions see all frames, not each other."""
        clips, steps = question_numbers.shape
        shared = torch.ones(len(self), len(self), dtype=torch.bool, device=question_numbers.device).tril()
        above = torch.cat([shared, shared.new_zeros(len(self), steps)], dim=1)
        prefix = shared.new_ones(clips, steps, len(self))
        below = torch.cat([prefix, (question_numbers[:, :, None] == question_numbers[:, None]).tril()], dim=2)
        return torch.cat([above.expand(clips, -1, -1), below], dim=1)[:, None]
