"""Options in the fields of sections, with their texts; for the generated table, and for packages of someone else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from stream.config import FileName
from stream.config_loading import known_keys
from stream.errors import ConfigError
from stream.extension.registry import remedy_of
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
def every_option() -> tuple[Option, ...]:
    """Return the options of this program and of packages of someone else, with the suffixes of all outputs.

    Raises ConfigError, which names the package, if a command has one of its options already.
    """
    options = tuple(options_of_fields(known_keys()))
    taken = set[tuple[str, str]]()
    for option in options:  # those of packages come last
        names = "/".join(option.names).split("/")  # those of a switch are one
        uses = {(command, name) for command in option.commands for name in names}
        if clashes := sorted(uses & taken):
            command, name = clashes[0]
            extension = option.key.partition(".")[0]
            problem = f"`{command}` has an option {name} already, and the extension {extension} another"
            raise ConfigError(f"{problem}; {remedy_of(extension)}")
        taken |= uses
    return options


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
