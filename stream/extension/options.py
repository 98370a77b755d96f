"""Options in the fields of sections, with their texts; for the generated table, and for packages of someone else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from stream.config import FileName
from stream.config_loading import keys_of
from stream.extension.registry import installed_extensions
from stream.options.option import Option
from stream.sinks.types import caption_suffixes


def options_of_fields(fields: Mapping[str, FieldInfo]) -> Iterator[Option]:
    """Yield the options of dotted keys and their fields, in the order of the fields."""
    for key, field in fields.items():
        for option in field.metadata:
            if isinstance(option, Option):
                texts = {"choices": _choices(field.annotation), "default": _default(field.default)}
                text = option.help.format(**texts, suffixes=" ".join(caption_suffixes()))
                yield replace(option, help=text, key=key, kind=_kind(option, field))


@cache
def installed_options() -> tuple[Option, ...]:
    """Return the options of packages of someone else."""
    fields: dict[str, FieldInfo] = {}
    for extension in installed_extensions():
        model = extension.load_section()
        if model is not None:
            fields |= keys_of(model, f"{extension.name}.")
    return tuple(options_of_fields(fields))


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
