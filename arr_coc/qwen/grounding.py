"""Reader of the places in an answer: Qwen's grounding formats, in whole, broken and hostile text. Imports no torch.

Models are trained to locate things as JSON objects with `bbox_2d` or `point_2d` and a `label`, with or without a fence
(Qwen2.5-VL, arXiv:2502.13923; Qwen3-VL, arXiv:2511.21631), or as names and boxes between special tokens (Qwen2-VL,
arXiv:2409.12191). `arr_coc.qwen.families` has the coordinates that each family uses.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

THINGS_MAX = 1_000
"""Places that are read from one answer; a picture of 1,000 objects is a crowd, and more are a fault."""

CHARS_MAX = 1 << 17
"""Characters that are read of one text: twice the longest answer."""

ITEM_CHARS_MAX = 4_096
"""Length of one JSON object. In a longer one the objects inside are read."""

FAILURES_MAX = 256
"""Braces without a whole object behind them, after which the rest of a text is not read."""

LABEL_CHARS_MAX = 200
LABELS_NAMED = 12
"""Labels in the words for an answer."""

NAMING_TOKENS = ("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>")
"""Special tokens around names and boxes."""

GROUNDED = re.compile(
    r"bbox_2d|point_2d|<\|(?:object_ref|box)_start\|>|\A\s{0,8}(?:```(?:json)?\s{0,8})?\[\s{0,8}\]\s{0,8}(?:```)?\s{0,8}\Z"
)
"""Marks of an answer with places, or with an empty list of them."""

_NUMBER = r"\s{0,4}(-?\d{1,12}(?:\.\d{1,12})?)\s{0,4}"
_CORNER = rf"\({_NUMBER},{_NUMBER}\)"
_MARKED = re.compile(
    rf"<\|object_ref_start\|>(?P<label>[^<]{{0,{LABEL_CHARS_MAX}}})<\|object_ref_end\|>"
    r"|<\|box_start\|>(?P<places>[^<]{0,4096})(?P<end><\|box_end\|>)?"
)
_PLACE = re.compile(rf"{_CORNER}(?:\s{{0,4}},\s{{0,4}}{_CORNER})?")
_TOKENS = re.compile("|".join(map(re.escape, NAMING_TOKENS)))

# Integers are read as floats: Python refuses to convert more than some thousands of digits.
_DECODER = json.JSONDecoder(parse_int=float, parse_constant=lambda name: math.nan)

THOUSANDTHS = 1000.0
"""Width and height of any picture for most families."""

Extent = tuple[float, float]
"""Width and height of a picture in the coordinates of an answer."""


@dataclass(frozen=True, slots=True)
class LocatedThing:
    """Thing that an answer locates: `box` (left, top, right, bottom) or `point` (x, y), or both, in shares of the
    picture from its top left; `score` from 0 to 1, if the answer has one. `label` is as the model wrote it."""

    label: str
    box: tuple[float, float, float, float] | None
    point: tuple[float, float] | None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class LocatedThings:
    """Things of one answer, in order. `unusable`: number of others whose place is outside the picture, empty, or no
    place; `cut`: there are more than THINGS_MAX, or the text is longer than CHARS_MAX."""

    things: tuple[LocatedThing, ...]
    unusable: int = 0
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Item:
    """Part of a text that names a place: its span in the text, and all that follows from it."""

    start: int
    end: int
    label: str
    boxes: tuple[Any, ...]
    points: tuple[Any, ...]
    score: float | None = None


def located_things(text: str, extent: Extent) -> LocatedThings:
    """Return the things that an answer locates in a picture of the given `extent`.

    Inverted boxes are turned, boxes that reach beyond the picture are clipped, and those without a part in it left out.
    Of JSON that is cut short or broken the whole objects are read.
    """
    things: list[LocatedThing] = []
    unusable = 0
    cut = len(text) > CHARS_MAX
    for item in _items(text[:CHARS_MAX]):
        for box, point in _pairs(item):
            if len(things) + unusable >= THINGS_MAX:
                return LocatedThings(tuple(things), unusable, cut=True)
            place = _clipped(_numbers(box, 4), extent)
            spot = _inside(_numbers(point, 2), extent)
            if place is None and spot is None:
                unusable += 1
            else:
                things.append(LocatedThing(item.label, place, spot, item.score))
    return LocatedThings(tuple(things), unusable, cut)


def words_for(text: str) -> str:
    """Return an answer for people: its places are replaced by names and their numbers, such as "2 × person, dog".

    The text around them stays; an empty list is "nothing". Another answer is returned as it is.
    """
    if GROUNDED.search(text) is None:
        return text
    if "[" in text and not text.strip().removeprefix("```json").strip("`[] \n\r\t"):
        return "nothing"
    items = list(_items(text[:CHARS_MAX]))
    if not items:
        return text
    if _MARKED.search(text):
        return " ".join(_TOKENS.sub("", _MARKED.sub(lambda match: match["label"] or "", text)).split())
    before = text[: items[0].start].rstrip("[ \n\r\t")
    after = text[items[-1].end :].lstrip("] \n\r\t")
    before = before.removesuffix("```json").removesuffix("```")
    after = after.removeprefix("```")
    if after.startswith((",", "{")):  # an object that is cut short
        after = ""
    counts = Counter(item.label or "object" for item in items for _ in _pairs(item))
    names = [f"{count} × {label}" if count > 1 else label for label, count in counts.items()]
    ellipsis = ["…"] if len(names) > LABELS_NAMED else []
    return " ".join(filter(None, (before.strip(), ", ".join(names[:LABELS_NAMED] + ellipsis), after.strip())))


def _items(text: str) -> Iterator[_Item]:
    """Yield the places of a text in order, marked ones or those of JSON, at most THINGS_MAX and one more."""
    marked = "<|box_start|>" in text
    for number, item in enumerate(_marked_items(text) if marked else _json_items(text)):
        if number > THINGS_MAX:
            return
        yield item


def _pairs(item: _Item) -> Iterator[tuple[Any, Any]]:
    """Yield box and point of each thing: an object with one of both is one thing, else each place is one."""
    if len(item.boxes) == len(item.points) == 1:
        yield item.boxes[0], item.points[0]
        return
    yield from ((box, None) for box in item.boxes)
    yield from ((None, point) for point in item.points)


def _marked_items(text: str) -> Iterator[_Item]:
    label = ""
    for match in _MARKED.finditer(text):
        if match["label"] is not None:
            label = _label(match["label"])
            continue
        for place in _PLACE.finditer(match["places"]):
            corners = [float(number) for number in place.groups() if number is not None]
            if len(corners) == 4:
                yield _Item(match.start(), match.end(), label, (corners,), ())
            elif match["end"]:  # a lone corner in an unfinished box is half of it
                yield _Item(match.start(), match.end(), label, (), (corners,))


def _json_items(text: str) -> Iterator[_Item]:
    at = text.find("{")
    failures = 0
    while at >= 0 and failures < FAILURES_MAX:
        end = at + 1
        try:
            value, length = _DECODER.raw_decode(text[at : at + ITEM_CHARS_MAX])
        except (ValueError, RecursionError):
            failures += 1
        else:
            end = at + length
            for entry in _objects_with_places(value):
                yield _Item(
                    at,
                    end,
                    _label(entry.get("label", entry.get("text_content"))),
                    _places(entry.get("bbox_2d", ())),
                    _places(entry.get("point_2d", ())),
                    _score(entry.get("score", entry.get("confidence"))),
                )
        at = text.find("{", end)


def _objects_with_places(value: Any) -> Iterator[dict[str, Any]]:
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict) and ("bbox_2d" in node or "point_2d" in node):
            yield node
        elif isinstance(node, (dict, list)):
            waiting += reversed(list(node.values()) if isinstance(node, dict) else node)


def _places(value: Any) -> tuple[Any, ...]:
    """Return the places of a value, which is one list of numbers or a list of such lists."""
    is_list = isinstance(value, list) and bool(value) and all(isinstance(place, list) for place in value)
    if is_list or value == ():
        return tuple(value)
    return (value,)


def _numbers(value: Any, count: int) -> tuple[float, ...] | None:
    if not isinstance(value, list) or len(value) != count:
        return None
    finite = all(isinstance(number, float) and math.isfinite(number) for number in value)
    return tuple(value) if finite else None


def _clipped(box: tuple[float, ...] | None, extent: Extent) -> tuple[float, float, float, float] | None:
    if box is None:
        return None
    left, right = (min(max(x / extent[0], 0.0), 1.0) for x in sorted((box[0], box[2])))
    top, bottom = (min(max(y / extent[1], 0.0), 1.0) for y in sorted((box[1], box[3])))
    if left < right and top < bottom:
        return (left, top, right, bottom)
    return None


def _inside(point: tuple[float, ...] | None, extent: Extent) -> tuple[float, float] | None:
    if point is None:
        return None
    x = point[0] / extent[0]
    y = point[1] / extent[1]
    return (x, y) if 0 <= x <= 1 and 0 <= y <= 1 else None


def _label(value: Any) -> str:
    """Return a label that UTF-8 can carry, cut to its longest length."""
    if isinstance(value, str):
        return value[:LABEL_CHARS_MAX].encode("utf-8", "replace").decode()
    return ""


def _score(value: Any) -> float | None:
    if isinstance(value, float) and 0 <= value <= 1:
        return value
    return None
