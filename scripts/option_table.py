"""Contents of stream/options/table.py: the options in the fields of stream/config.py, with their texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from stream.config import FileName
from stream.config_loading import known_keys
from stream.options.option import Option
from stream.sinks.types import caption_suffixes

HEAD = '''\
# ruff: noqa: E501
# fmt: off
"""Options that set configuration keys: generated from the fields of stream/config.py, which take long to load."""

from __future__ import annotations

from stream.options.option import Option

OPTIONS = (
'''


def option_table() -> str:
    """Return the module's text."""
    return HEAD + "".join(f"    {_row(option)},\n" for option in options()) + ")\n"


def options() -> Iterator[Option]:
    """Yield the options in the order of their fields."""
    for key, field in known_keys().items():
        for option in field.metadata:
            if isinstance(option, Option):
                texts = {"choices": _choices(field.annotation), "default": _default(field.default)}
                text = option.help.format(**texts, suffixes=", ".join(caption_suffixes()))
                yield replace(option, help=text, key=key, kind=_kind(option, field))


def _row(option: Option) -> str:
    names = ("without", "also", "only", "group", "key", "kind")
    keywords = "".join(f', {name}="{value}"' for name in names if (value := getattr(option, name)))
    return f"Option({_quoted(option.spelling)}, {_quoted(option.help)}{keywords})"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def _choices(annotation: Any) -> str:
    values = get_args(annotation) if get_origin(annotation) is Literal else ()
    return ", ".join(str(value) for value in values if value != "auto")


def _default(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _kind(option: Option, field: FieldInfo) -> str:
    """Return how the value is read, by the type of the field."""
    if option.metavar is None:
        return "switch" if " / " in option.spelling else "flag"
    if option.metavar == "TIME":
        return "time"
    if get_origin(field.annotation) is tuple:
        return "list"
    return "text" if field.annotation in (str, str | None, FileName | None) else "value"
