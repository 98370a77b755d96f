"""Tables of options in docs/cli.md: those of each command, and those that all runs have, between marks in the page.

Options with a key are described by its field in stream/config.py, the others by their help.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperOption

from scripts.config_reference import documented_keys, linked, text_of
from stream.cli import application
from stream.commands.options import SHARED, options_of
from stream.config_loading import known_keys
from stream.options.option import RUN, Option

COMMON = "all runs"
BLOCK = re.compile(r"(<!-- options of ([\w -]+) -->\n).*?(<!-- end of options -->)", re.DOTALL)
DEFAULT = re.compile(r"(?: \[([^\]]*)\])?$")
PAGE = "cli.md"


def cli_page(text: str) -> str:
    """Return docs/cli.md with its tables written anew."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{_table(block[2])}\n{block[3]}", text)


def _table(command: str) -> str:
    every_run = {option.parameter: option for option in options_of("caption") if "bench" in option.commands}
    shared = {name for name, (*_, commands) in SHARED.items() if "bench" in commands.split()}
    parameters = _declared("caption" if command == COMMON else command)
    config_options = every_run if command == COMMON else {option.parameter: option for option in options_of(command)}
    common = {*every_run, *shared} if command in RUN.split() else set()
    meanings = documented_keys()
    rows = [
        _row(option, config_options.get(name), meanings)
        for name, option in parameters.items()
        if (name in every_run or name in shared if command == COMMON else name not in common)
    ]
    omissions = [f"`{option.names[0]}`" for name, option in every_run.items() if common and name not in parameters]
    note = f"\nAnd the [common options](#common-options), except {', '.join(omissions)}.\n" if omissions else ""
    return "| option | meaning | default | key |\n| --- | --- | --- | --- |\n" + "".join(rows) + note


def _declared(command: str) -> dict[str, TyperOption]:
    """Return the options of a command by their parameters, in the order of the help."""
    group: Any = typer.main.get_command(application())
    params = group.commands[command].params
    return {param.name: param for param in params if param.param_type_name == "option"}


def _row(option: TyperOption, config_option: Option | None, meanings: Mapping[str, str]) -> str:
    names = [*sorted(option.opts, key=len), *option.secondary_opts]
    names[-1] += f" {option.metavar}" if option.metavar else ""
    text, default = DEFAULT.sub("", option.help or ""), DEFAULT.search(option.help or "")
    meaning, key = text_of(text), ""
    if config_option is not None:
        meaning, key = meanings[config_option.key] + _choices(config_option.key), f"`{config_option.key}`"
    default_text = default[1] if default is not None and default[1] else "off" if option.is_flag else ""
    return f"| {', '.join(f'`{name}`' for name in names)} | {linked(meaning, PAGE)} | {default_text} | {key} |\n"


def _choices(key: str) -> str:
    annotation = known_keys()[key].annotation
    return (
        f" Values: {', '.join(f'`{value}`' for value in get_args(annotation))}."
        if get_origin(annotation) is Literal
        else ""
    )
