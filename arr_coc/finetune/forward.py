"""Forward of a batch: pictures and text → chosen tokens → logits and loss, with gradients to model and allocator.

| encode | tokens | gradient to relevance |
| --- | --- | --- |
| `sparse` | the chosen regions, encoded alone | straight through the choice |
| `prune` | the chosen regions of the encoded picture | straight through the choice |
| `weighted` | all tiles, multiplied by their relevance | plain |
| `full` | all tiles | none |

Straight through, a chosen token has the weight 1, whose derivative goes to the token's share of relevance
(`arr_coc.allocation.choice_gradient`): as a factor of its embedding, and as a term of the attention of other tokens to
it, which is what removing a token would change (as in DynamicViT: Rao et al., 2021, arXiv:2106.02034).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.utils import ModelOutput

from arr_coc.errors import ContextLengthError, OptionError, counted
from arr_coc.finetune.activations import run_checkpointed
from arr_coc.finetune.pictures import pictures_of
from arr_coc.finetune.sequences import SequenceLayout, ShownRegions, lay_out, question_ids
from arr_coc.layer import ARRCOCLayer, token_texels
from arr_coc.qwen.encoding import EncodedFrame, pool_regions
from arr_coc.qwen.preprocess import grid_regions
from arr_coc.qwen.processor_inputs import (
    ModelPicture,
    PicturePlace,
    ProcessorInputs,
    check_places,
    picture_places,
    unpack,
)
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.vision import VisualTokens, attend_afresh, embed_rows, run_blocks
from arr_coc.relevance.channels import TextureArray
from arr_coc.texture.pictures import Picture
from arr_coc.texture.regions import token_positions
from arr_coc.types import SHOWS_ALL_TILES, TILE_PX, Encode, TileGrid

IGNORED = -100
"""Label of tokens that are not learned."""


@dataclass(frozen=True, slots=True)
class ARRCOCInfo:
    """The allocator's choices for the N pictures of a batch, in the order of their places in `input_ids`.

    `relevance`: N maps float32 [gh, gw] in [0, 1], and `scores`: N times float32 [3, gh, gw] (information, perspective,
    participation), both with their gradient; `weights` float32 [N, 3] of the scores. The chosen regions, padded to the
    most, K: `regions` int64 [N, K, 3] (shape, row, col); `positions` float32 [N, K, 2], their centres in tiles;
    `budgets` int64 [N, K], their texels for each tile; `mask` bool [N, K], False for padding. With `encode` `weighted`
    and `full` these are all tiles. `sequences` int64 [N]: the sequence of each picture. `columns` int64 [B, L]: the
    column of `input_ids` of each of the logits, -1 for visual tokens and padding.
    """

    relevance: tuple[torch.Tensor, ...]
    scores: tuple[torch.Tensor, ...]
    weights: torch.Tensor
    regions: torch.Tensor
    positions: torch.Tensor
    budgets: torch.Tensor
    mask: torch.Tensor
    sequences: torch.Tensor
    columns: torch.Tensor


@dataclass
class ARRCOCModelOutput(ModelOutput):
    """Output of the forward. `loss`: None without labels; `logits` [B, L, vocabulary], L shorter than `input_ids` by
    the tokens left out; `arr_coc_info`: the choices, and the column of `input_ids` of each of the logits."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    arr_coc_info: ARRCOCInfo | None = None


@dataclass(frozen=True, slots=True)
class BatchInputs(ProcessorInputs):
    """Arguments of `TrainableQwen.forward`."""

    labels: torch.Tensor | None = None
    images: Picture | Sequence[Picture | Sequence[Picture]] | None = None
    question_mask: torch.Tensor | None = None

    def with_plain_pictures(self, qwen: QwenVL) -> BatchInputs:
        """Return the inputs with `pixel_values` [B, 3, H, W] as images, one before the text of each sequence that shows
        none."""
        if not isinstance(self.pixel_values, torch.Tensor) or self.pixel_values.ndim != 4 or self.images is not None:
            return self
        plain = replace(self, pixel_values=None, images=list(self.pixel_values))
        if bool((self.input_ids == qwen.model.config.image_token_id).any()):
            return plain
        place = torch.tensor(qwen.token_ids("<|vision_start|><|image_pad|><|vision_end|>"))

        columns = {
            "input_ids": place,
            "attention_mask": torch.ones_like(place),
            "labels": torch.full_like(place, IGNORED),
            "question_mask": torch.zeros_like(place),
        }
        given = {name: rows for name in columns if (rows := getattr(self, name)) is not None}
        return replace(
            plain,
            **{
                name: torch.cat([columns[name].to(rows).expand(len(rows), -1), rows], dim=1)
                for name, rows in given.items()
            },
        )

    def check(self, vocabulary: int) -> None:
        """Raise also for labels out of range or without a token to learn, and for pictures that are given twice."""
        ProcessorInputs.check(self, vocabulary)
        for name in ("labels", "question_mask"):
            self.check_shape(name, getattr(self, name))
        if self.pixel_values is not None and self.images is not None:
            raise OptionError("give pixel_values or images, not both")
        if self.labels is not None:
            targets = self.labels[self.labels != IGNORED]
            if not len(targets) or not 0 <= int(targets.min()) <= int(targets.max()) < vocabulary:
                if len(targets):
                    span = f"{int(targets.min())} to {int(targets.max())}"
                else:
                    span = f"only {IGNORED}"
                raise OptionError(f"labels must be token ids, or {IGNORED} for tokens that are not learned, got {span}")

    def questions(self, qwen: QwenVL, places: Sequence[PicturePlace]) -> list[torch.Tensor]:
        """Return the token ids int64 [Lq] of the question about each picture; tokens with labels are part of it only if
        `question_mask` includes them."""
        if self.question_mask is None:
            if self.labels is None:
                mask = self.token_mask
            else:
                mask = self.token_mask & (self.labels == IGNORED)
            return question_ids(qwen, self.input_ids, mask, places)
        mask = self.question_mask.bool() & self.token_mask
        return [self.input_ids[place.sequence, mask[place.sequence]] for place in places]


@dataclass(frozen=True, slots=True)
class PictureChoice:
    """Choice for one picture: `regions` int64 [K, 3] on the CPU, and `presence` float32 [K], zeros that carry the
    gradient; with its `relevance` [gh, gw], `scores` [3, gh, gw] and `weights` [3]."""

    regions: torch.Tensor
    presence: torch.Tensor
    relevance: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor


class BatchedForward:
    """Forward of one model with one allocator; see the module. Raises OptionError for `encode="incremental"`."""

    def __init__(self, qwen: QwenVL, allocator: Any, encode: Encode) -> None:
        if encode == "incremental":
            raise OptionError(
                'encode="incremental" keeps state from frame to frame, which a batch has not; take "sparse", which '
                "gives the same tokens"
            )
        self._qwen = qwen
        self._allocator = allocator
        self._encode = encode

    def __call__(self, inputs: BatchInputs) -> ARRCOCModelOutput:
        """Raise as `TrainableQwen.forward`."""
        qwen = self._qwen
        inputs = inputs.with_plain_pictures(qwen)
        inputs.check(int(qwen.model.config.get_text_config().vocab_size))
        if inputs.pixel_values is not None:
            pictures = unpack(inputs.pixel_values, inputs.image_grid_thw, qwen.preprocessing)
        elif inputs.images is not None:
            pictures = pictures_of(inputs.images, qwen.preprocessing)
        else:
            pictures = []
        places = picture_places(inputs.input_ids, inputs.token_mask, qwen.model.config)
        check_places(places, [picture.grid.tiles for picture in pictures])
        questions = inputs.questions(qwen, places)
        # pictures of one size are a batch
        by_index: dict[int, PictureChoice] = {}
        for indices in _group_indices(picture.grid.shape for picture in pictures):
            texture = _batched([pictures[index].texture(self._allocator.config.channels) for index in indices])
            by_index |= zip(indices, self._grid_choices(texture, [questions[index] for index in indices]), strict=True)
        choices = [by_index[index] for index in range(len(pictures))]
        tokens = self._encoded(pictures, choices)
        regions = [
            ShownRegions(choice.regions, picture.grid) for choice, picture in zip(choices, pictures, strict=True)
        ]
        layout = lay_out(inputs.token_mask.cpu(), places, regions).to(qwen.device)
        tokens_most = layout.source.shape[1]
        if tokens_most > qwen.max_context_tokens:
            raise ContextLengthError(
                f"a sequence has {counted(tokens_most, 'token')}, the model's context {qwen.max_context_tokens}",
                "shorten the text, or lower the allocator's budget",
            )
        logits = self._logits(inputs.input_ids, tokens, choices, layout)
        if inputs.labels is None:
            loss = None
        else:
            labels = layout.gather_labels(inputs.labels.to(qwen.device), IGNORED)
            loss = qwen.model.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1])
        return ARRCOCModelOutput(loss=loss, logits=logits, arr_coc_info=_info(choices, places, layout))

    def _grid_choices(self, texture: TextureArray, questions: Sequence[torch.Tensor]) -> list[PictureChoice]:
        """Return the choices for pictures of one grid."""
        layer: ARRCOCLayer = self._allocator
        embedded = [self._qwen.language_model.embed_tokens(ids.to(self._qwen.device)) for ids in questions]
        realised = layer.realise(texture, pad_sequence(embedded, batch_first=True).detach())
        choice = layer.choose(texture, realised)
        if self._encode in SHOWS_ALL_TILES:
            all_regions = grid_regions(TileGrid.of(*(side * TILE_PX for side in texture.entropy.shape[1:])))
            selections = [(all_regions, relevance.new_zeros(len(all_regions))) for relevance in realised.relevance]
        else:
            regions = choice.allocation.regions
            presence = choice.presence
            mask = choice.allocation.mask
            selections = [
                (rows[valid], present[valid.to(present.device)])
                for rows, present, valid in zip(regions, presence, mask, strict=True)
            ]
        maps = zip(realised.relevance, realised.scores, realised.weights, strict=True)
        return [PictureChoice(*selection, *parts) for selection, parts in zip(selections, maps, strict=True)]

    def _encoded(self, pictures: Sequence[ModelPicture], choices: Sequence[PictureChoice]) -> list[VisualTokens]:
        """Return the visual tokens [K, D] of every picture; pictures of equal size and token count are a batch."""
        all_tiles = self._encode != "sparse"
        encoded: dict[int, VisualTokens] = {}
        counts = (
            picture.grid.tiles if all_tiles else len(choice.regions)
            for picture, choice in zip(pictures, choices, strict=True)
        )
        for indices in _group_indices(zip((picture.grid.shape for picture in pictures), counts, strict=True)):
            pairs = [(pictures[index], choices[index]) for index in indices]
            batch = self._encode_batch(pairs, all_tiles)
            for row, (index, (picture, choice)) in enumerate(zip(indices, pairs, strict=True)):
                tokens = VisualTokens(batch.embeds[row], tuple(rows[row] for rows in batch.deepstack))
                encoded[index] = self._carrying(tokens, picture, choice)
        return [encoded[index] for index in range(len(pictures))]

    def _encode_batch(self, pairs: Sequence[tuple[ModelPicture, PictureChoice]], all_tiles: bool) -> VisualTokens:
        """Encode pictures of one grid, whole or only their chosen regions: [n, K, D]."""
        qwen = self._qwen
        grid = pairs[0][0].grid
        if all_tiles:
            pixels = [picture.tiles for picture, _ in pairs]
            regions = [grid_regions(grid)] * len(pairs)
        else:
            pixels = [picture.pixels(choice.regions) for picture, choice in pairs]
            regions = [choice.regions for _, choice in pairs]
        device = qwen.vision_device
        placed = torch.stack(regions).to(device)
        rows = embed_rows(qwen.tower, torch.stack(pixels).to(device), placed, grid, qwen.preprocessing.scale)
        return run_blocks(qwen.tower, rows, attend_afresh(qwen.tower, placed), run_checkpointed)

    def _carrying(self, tokens: VisualTokens, picture: ModelPicture, choice: PictureChoice) -> VisualTokens:
        """Return one picture's tokens [K, D] for the language model, with their gradient to relevance."""
        if self._encode == "full":
            return tokens
        if self._encode == "weighted":
            factor = choice.relevance.flatten()
        else:
            factor = 1 + choice.presence
        if self._encode == "prune":
            all_regions = grid_regions(picture.grid, tokens.embeds.device)
            frame = EncodedFrame(tokens.map(lambda rows: rows[None]), all_regions[None], picture.grid)
            tokens = pool_regions(frame, choice.regions).tokens.map(lambda rows: rows[0])
        return tokens.map(lambda rows: rows * factor[:, None].to(rows))

    def _logits(
        self,
        input_ids: torch.Tensor,
        tokens: Sequence[VisualTokens],
        choices: Sequence[PictureChoice],
        layout: SequenceLayout,
    ) -> torch.Tensor:
        """Return the logits [B, L, vocabulary] of the language model over the layout."""
        qwen = self._qwen
        text = qwen.language_model.embed_tokens(input_ids.to(qwen.device)).flatten(0, 1)
        pool = torch.cat([text, *(picture.embeds.to(text) for picture in tokens)])
        presence = torch.cat([text.new_zeros(len(text)), *(choice.presence.to(text) for choice in choices)])
        arguments: dict[str, Any] = {}
        if tokens and tokens[0].deepstack:
            rows = zip(*(picture.deepstack for picture in tokens), strict=True)
            arguments["deepstack_visual_embeds"] = [torch.cat([part.to(text) for part in level]) for level in rows]
            arguments["visual_pos_masks"] = layout.visual
        hidden = qwen.language_model(
            inputs_embeds=pool[layout.source] * layout.token_mask[..., None],
            position_ids=layout.positions,
            attention_mask=self._attention_mask(layout, presence[layout.source]),
            use_cache=False,
            **arguments,
        ).last_hidden_state
        logits: torch.Tensor = qwen.model.lm_head(hidden)
        return logits

    def _attention_mask(self, layout: SequenceLayout, presence: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the padding mask bool [B, L]; if presence has a gradient, the term added to the attention's logits
        [B, 1, L, L], and the padding mask for recurrent layers.

        FlashAttention takes no additive mask, so it gets the padding mask.
        """
        if not presence.requires_grad or "flash" in str(self._qwen.model.config._attn_implementation):
            return layout.token_mask
        length = layout.token_mask.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=presence.device).tril()
        visible = causal & layout.token_mask[:, None, None]
        bias = torch.where(visible, presence[:, None, None], torch.finfo(presence.dtype).min)
        if not self._qwen.family.recurrent:
            return bias
        return {"full_attention": bias, "linear_attention": layout.token_mask}


def _batched(textures: Sequence[TextureArray]) -> TextureArray:
    """Stack texture arrays of pictures of one size."""
    gradients = [texture.gradients for texture in textures if texture.gradients is not None]
    return TextureArray(
        torch.stack([texture.channels for texture in textures]),
        torch.stack([texture.entropy for texture in textures]),
        torch.stack(gradients) if gradients else None,
    )


def _group_indices(keys: Iterable[Hashable]) -> list[list[int]]:
    """Group the indices of equal keys."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        groups[key].append(index)
    return list(groups.values())


def _info(choices: Sequence[PictureChoice], places: Sequence[PicturePlace], layout: SequenceLayout) -> ARRCOCInfo:
    device = layout.columns.device
    if choices:
        regions = pad_sequence([choice.regions for choice in choices], batch_first=True)
        mask = pad_sequence([torch.ones(len(choice.regions), dtype=torch.bool) for choice in choices], batch_first=True)
    else:
        regions = torch.zeros(0, 0, 3, dtype=torch.long)
        mask = torch.zeros(0, 0, dtype=torch.bool)
    return ARRCOCInfo(
        # copies, because FSDP warns of views in what a module returns
        relevance=tuple(choice.relevance.clone() for choice in choices),
        scores=tuple(choice.scores.clone() for choice in choices),
        weights=torch.stack([choice.weights for choice in choices]) if choices else torch.zeros(0, 3, device=device),
        regions=regions.to(device),
        positions=(token_positions(regions) * mask[..., None]).to(device),
        budgets=(token_texels(regions) * mask).to(device),
        mask=mask.to(device),
        sequences=torch.tensor([place.sequence for place in places], dtype=torch.long, device=device),
        columns=layout.columns,
    )
