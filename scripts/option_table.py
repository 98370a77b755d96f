"""Contents of stream/options/table.py: the options in the fields of stream/config.py, with their texts."""

from __future__ import annotations

from collections.abc import Iterator

from stream.config_loading import known_keys
from stream.extension.options import options_of_fields
from stream.options.option import Option

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
    return options_of_fields(known_keys())


def _row(option: Option) -> str:
    names = ("without", "also", "only", "group", "key", "kind")
    keywords = "".join(f', {name}="{value}"' for name in names if (value := getattr(option, name)))
    return f"Option({_quoted(option.spelling)}, {_quoted(option.help)}{keywords})"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'
