"""Files of questions about pictures and clips, one JSON object a line: `read_question_lines`.

| field of a line | value |
| --- | --- |
| `image`, `frames` or `video` | a path, a list of paths in order, or a path; relative to the file |
| `question` | the text |
| `answers` | list of texts; ten of them count as ten people's votes |
| `id`, `kind` | optional; the line number and "own" when absent |
| `boxes` | what is asked about in the newest frame: [[left, top, right, bottom], ...] in its pixels |

Evaluation needs the answers, learning needs the boxes; each leaves alone what it does not need.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from arr_coc.errors import OptionError

if TYPE_CHECKING:
    from arr_coc.adaptation.cases import Box

T = TypeVar("T")

MEDIA_FIELDS = ("image", "frames", "video")
FIELDS = frozenset({*MEDIA_FIELDS, "question", "answers", "id", "kind", "boxes"})


@dataclass(frozen=True, slots=True)
class QuestionLine:
    """One line, `number` from 1. Its methods raise ValueError, in words, for a field that does not match the table."""

    number: int
    fields: dict[str, Any]
    folder: Path

    @property
    def media_field(self) -> str:
        """The field that says what is shown: one of `MEDIA_FIELDS`."""
        return next(name for name in MEDIA_FIELDS if name in self.fields)

    def text(self, name: str, default: str | None = None) -> str:
        """A field that holds a text."""
        value = self.fields.get(name, default)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f'it needs "{name}", a text; got {value!r}')
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A field that holds a list of texts."""
        values = self.fields.get(name)
        if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
            raise ValueError(f'it needs "{name}", a list of at least one text; got {values!r}')
        return tuple(values)

    def paths(self) -> tuple[Path, ...]:
        """The files of what is shown, in order; each is there."""
        if self.media_field == "frames":
            names = self.texts("frames")
        else:
            names = (self.text(self.media_field),)
        paths = tuple(self.folder / Path(name).expanduser() for name in names)
        for path in paths:
            if not path.is_file():
                raise ValueError(f'there is no file {path}; put it there, or correct the path in "{self.media_field}"')
        return paths

    def boxes(self) -> tuple[Box, ...]:
        """The boxes; empty without the field."""
        value = self.fields.get("boxes", [])
        if not isinstance(value, list):
            raise ValueError(f'it needs "boxes", a list of [left, top, right, bottom]; got {value!r}')
        return tuple(_box(box) for box in value)


def read_question_lines(path: Path, parse: Callable[[QuestionLine], T]) -> list[T]:
    """Call `parse` for each line that is not blank; returns the results.

    Raises OptionError for a file that cannot be read, is not UTF-8 or holds nothing; and, with the line's number, for a
    line that is no JSON object, has an unknown field or does not show exactly one thing, and if `parse` raises
    ValueError.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            reason = error.strerror
        else:
            reason = "it is not UTF-8"
        raise OptionError(f"cannot read {path}: {reason}", "give a JSONL file with one question a line") from error
    entries = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                entries.append(parse(QuestionLine(number, _fields(line), path.parent)))
            except ValueError as error:
                raise OptionError(f"line {number} of {path.name}: {error}") from None
    if not entries:
        raise OptionError(f"{path} holds no question", "write one JSON object a line")
    return entries


def _fields(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}); write one object a line") from None
    if not isinstance(fields, dict):
        raise ValueError('it is no JSON object; write {"image": ..., "question": ..., "answers": [...]}')
    unknown = sorted(fields.keys() - FIELDS)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(FIELDS))}")
    kinds = [name for name in MEDIA_FIELDS if name in fields]
    if len(kinds) != 1:
        raise ValueError(f"it needs one of image, frames and video, and has {' and '.join(kinds) or 'none'}; name one")
    return fields


def _box(value: Any) -> Box:
    numbers = isinstance(value, list) and len(value) == len(("left", "top", "right", "bottom"))
    if not numbers or not all(isinstance(edge, (int, float)) and math.isfinite(edge) for edge in value):
        raise ValueError(f"a box is [left, top, right, bottom] in pixels; got {value!r}")
    left, top, right, bottom = value
    if left >= right or top >= bottom:
        raise ValueError(f"a box is [left, top, right, bottom], left of its right and above its bottom; got {value!r}")
    return float(left), float(top), float(right), float(bottom)
