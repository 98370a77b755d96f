"""Contents of stream/options/table.py: the options in the fields of stream/config.py, with their texts."""

from __future__ import annotations

from stream.extension.options import every_option
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
    return HEAD + "".join(f"    {_row(option)},\n" for option in every_option()) + ")\n"


def _row(option: Option) -> str:
    names = ("without", "also", "only", "group", "key", "kind")
    keywords = "".join(f', {name}="{value}"' for name in names if (value := getattr(option, name)))
    return f"Option({_quoted(option.spelling)}, {_quoted(option.help)}{keywords})"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'
