"""Entries of annotation files: reading of JSON and Parquet, and fields that do not match."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, TypeVar

from arr_coc.adaptation.question_lines import QuestionLine
from evaluation.errors import QuestionsError

T = TypeVar("T")

LARGEST = 2**53
"""Of a number in an annotation: larger ones are no whole numbers any more, infinite or not a number."""


@dataclass(frozen=True, slots=True)
class Entry(QuestionLine):
    """One entry of a file, `number` from 1; `fields` is its JSON object. Its methods raise ValueError, in words."""

    def number_of(self, name: str) -> float:
        """A field that holds a number."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < LARGEST:
            raise ValueError(f'it needs "{name}", a number of at least 0; got {value!r}')
        return float(value)

    def file(self, name: str) -> str:
        """A field that holds the name of a file, or a part of it: a path that stays in the benchmark's folder."""
        text = self.text(name)
        if PurePath(text).is_absolute() or ".." in PurePath(text).parts or "\0" in text:
            raise ValueError(f'it needs "{name}", the name of a file in the folder; got {text!r}')
        return text

    def name_of(self, name: str) -> str:
        """A field that holds a number or a text, as a text."""
        value = self.fields.get(name)
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else self.text(name)

    def time_s(self, name: str) -> float:
        """A field that holds a time: "00:03:10" or "03:10"."""
        text = self.text(name)
        if not re.fullmatch(r"(\d+:)?\d+:\d+", text):
            raise ValueError(f'it needs "{name}", a time such as "00:03:10"; got {text!r}')
        return float(sum(int(part) * 60**place for place, part in enumerate(reversed(text.split(":")))))

    def letter(self, name: str, choices: int) -> str:
        """A field that holds the letter of one of so many choices."""
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:choices]
        text = self.text(name)
        if len(text) != 1 or text not in letters:
            raise ValueError(f'it needs "{name}", one of {", ".join(letters)}; got {text!r}')
        return text

    def entries(self, name: str) -> list[Entry]:
        """A field that holds a list of objects, as entries of the same number."""
        values = self.fields.get(name)
        if not isinstance(values, list) or not values or not all(isinstance(value, dict) for value in values):
            raise ValueError(f'it needs "{name}", a list of at least one object; got {_short(values)}')
        return [Entry(self.number, value, self.folder) for value in values]


def read_entries(path: Path, values: Iterable[Any], parse: Callable[[Entry], Sequence[T]]) -> list[T]:
    """Call `parse` for each value; returns all results.

    Raises QuestionsError, naming the file and the entry's number, for a value that is no object and if `parse` raises
    ValueError; and if there is no result.
    """
    results: list[T] = []
    for number, value in enumerate(values, 1):
        try:
            if not isinstance(value, dict):
                raise ValueError(f"it is no JSON object; got {_short(value)}")
            results += parse(Entry(number, value, path.parent))
        except ValueError as error:
            raise QuestionsError(f"entry {number} of {path}: {error}; download the file again, or mend it") from error
    if not results:
        raise QuestionsError(f"{path} holds no question; download it again")
    return results


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises QuestionsError if it cannot be read or is no JSON."""
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise QuestionsError(f"cannot read {path}: {error.strerror}; --data is the folder that holds it") from error
    except ValueError as error:
        raise QuestionsError(f"{path} is no JSON ({error}); download it again") from error


def json_list(path: Path, name: str | None = None) -> list[Any]:
    """The list that a JSON file is, or holds under `name`. Raises QuestionsError if there is none."""
    content = read_json(path)
    if name is not None:
        content = content.get(name) if isinstance(content, dict) else None
    if not isinstance(content, list):
        raise QuestionsError(f"{path} holds no list{f' {name!r}' if name else ''}; download it again")
    return content


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file. Raises QuestionsError if it cannot be read, or pyarrow is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise QuestionsError(f"{path.name} needs pyarrow, which is not installed: pip install pyarrow") from error
    try:
        yield from pyarrow.parquet.read_table(path).to_pylist()
    except FileNotFoundError as error:
        raise QuestionsError(f"cannot read {path}: no such file; --data is the folder that holds it") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise QuestionsError(f"{path} is no Parquet file ({error}); download it again") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
