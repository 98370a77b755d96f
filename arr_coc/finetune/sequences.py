"""Sequences of a batch: the questions about its pictures, and the layout with chosen tokens.

The layout replaces each picture's place by its chosen tokens, so sequences become shorter. Text keeps its M-RoPE
positions, which depend on the picture's size, not on its number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from arr_coc.qwen.preprocess import after_frame, text_positions, visual_positions
from arr_coc.qwen.processor_inputs import PicturePlace
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import TileGrid


@dataclass(frozen=True, slots=True)
class ShownRegions:
    """Regions int64 [K, 3] that are shown of a picture, and the grid of their positions."""

    regions: torch.Tensor
    grid: TileGrid


@dataclass(frozen=True, slots=True)
class SequenceLayout:
    """B sequences with chosen tokens, padded to the longest, L, on the side of the padding of `attention_mask`.

    `source` int64 [B, L]: each element's row in a pool of all text [B * S] followed by all visual tokens; `positions`
    float32 [3, B, L], M-RoPE; `token_mask` and `visual` bool [B, L]; `columns` int64 [B, L]: each element's column of
    `input_ids`, -1 for visual tokens and padding.
    """

    source: torch.Tensor
    positions: torch.Tensor
    token_mask: torch.Tensor
    visual: torch.Tensor
    columns: torch.Tensor

    def to(self, device: torch.device) -> SequenceLayout:
        """Return the layout on a device."""
        parts = (self.source, self.positions, self.token_mask, self.visual, self.columns)
        return SequenceLayout(*(part.to(device) for part in parts))

    def gather_labels(self, labels: torch.Tensor, ignored: int) -> torch.Tensor:
        """Return the layout's labels [B, L] from those of `input_ids` [B, S]; `ignored` for visual tokens and
        padding."""
        values = labels.gather(1, self.columns.clamp(min=0))
        return values.masked_fill(self.columns < 0, ignored)


def question_ids(
    qwen: QwenVL, input_ids: torch.Tensor, mask: torch.Tensor, places: Sequence[PicturePlace]
) -> list[torch.Tensor]:
    """Return the token ids int64 [Lq] of the question about each picture.

    This is the text of the picture's turn after its last picture, or, if that is empty, before its first one, without
    special tokens.

    Args:
        qwen: The model.
        input_ids: Token ids of the batch, int64 [B, S].
        mask: bool [B, S], False for tokens of no question: padding and labels.
        places: Places of the pictures.
    """
    open_id, close_id = (qwen.tokenizer.convert_tokens_to_ids(name) for name in ("<|im_start|>", "<|im_end|>"))
    special = {*qwen.tokenizer.all_special_ids, qwen.model.config.image_token_id}
    heading = qwen.token_ids("<|im_start|>user\n")
    rows = input_ids.tolist()
    allowed = mask.tolist()
    questions = []
    for place in places:
        row = rows[place.sequence]
        begin = max((column for column in range(place.first) if row[column] == open_id), default=0)
        end = next((column for column in range(place.end, len(row)) if row[column] == close_id), len(row))
        begin += len(heading) if row[begin : begin + len(heading)] == heading else 0
        turn_places = [other for other in places if other.sequence == place.sequence and begin <= other.first < end]
        spans = (
            range(max(other.end for other in turn_places), end),
            range(begin, min(other.first for other in turn_places)),
        )
        texts = ([c for c in span if row[c] not in special and allowed[place.sequence][c]] for span in spans)
        questions.append(input_ids[place.sequence, next((text for text in texts if text), [])])
    return questions


def lay_out(
    token_mask: torch.Tensor, places: Sequence[PicturePlace], pictures: Sequence[ShownRegions]
) -> SequenceLayout:
    """Lay out the sequences of a batch.

    Args:
        token_mask: Columns of `input_ids` to lay out, bool [B, S]; False for padding.
        places: Places of the pictures in these columns.
        pictures: Regions that are shown of each picture.
    """
    first_row = token_mask.numel()
    visual_rows = []
    for picture in pictures:
        visual_rows.append(torch.arange(first_row, first_row + len(picture.regions)))
        first_row += len(picture.regions)
    rows = []
    for sequence, mask in enumerate(token_mask):
        row = _Row(sequence * len(mask), mask.nonzero()[:, 0])
        for place, picture, picture_rows in zip(places, pictures, visual_rows, strict=True):
            if place.sequence == sequence:
                row.text_before(place.first)
                row.picture(place, picture, picture_rows)
        row.text_before(len(mask))
        rows.append(row.parts())
    left = bool((~token_mask[:, 0]).any()) and bool(token_mask[:, -1].all())
    sources, places_of, columns_of = zip(*rows, strict=True)
    source = _padded(sources, -1, left)
    columns = _padded(columns_of, -1, left)
    positions = _padded(places_of, 0, left).movedim(-1, 0)
    filled = source >= 0
    visual = source >= token_mask.numel()
    return SequenceLayout(source.clamp(min=0), positions, filled, visual, columns)


class _Row:
    """Builder of one sequence's layout; its text rows in the pool begin at `first`, `columns` are attended."""

    def __init__(self, first: int, columns: torch.Tensor) -> None:
        self._first = first
        self._columns = columns
        self._position = self._next_column = 0
        self._source: list[torch.Tensor] = []
        self._positions: list[torch.Tensor] = []
        self._output_columns: list[torch.Tensor] = []

    def text_before(self, column: int) -> None:
        """Add the text up to a column."""
        columns = self._columns[(self._columns >= self._next_column) & (self._columns < column)]
        self._add(self._first + columns, text_positions(self._position, len(columns)), columns)
        self._position += len(columns)
        self._next_column = column

    def picture(self, place: PicturePlace, picture: ShownRegions, rows: torch.Tensor) -> None:
        """Add the tokens of a picture, given as rows of the pool."""
        self._add(rows, visual_positions(self._position, picture.regions), torch.full_like(rows, -1))
        self._position = after_frame(self._position, picture.grid)
        self._next_column = place.end

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return source [L], positions [L, 3] and columns [L]."""
        return torch.cat(self._source), torch.cat(self._positions, dim=1).T, torch.cat(self._output_columns)

    def _add(self, source: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> None:
        self._source.append(source)
        self._positions.append(positions)
        self._output_columns.append(columns)


def _padded(rows: Sequence[torch.Tensor], fill: int, left: bool) -> torch.Tensor:
    side = "left" if left else "right"
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=fill, padding_side=side)
