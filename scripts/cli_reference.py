"""Table of options in docs/cli.md, between marks in the page: each option once, with the commands that have it.

The rows are in the order and in the groups of the help.
"""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperOption

from scripts.config_reference import documented_keys, linked, text_of, with_reference
from stream.cli import application
from stream.commands.help import BEHAVIOUR, GROUPS
from stream.commands.options import options_of
from stream.options.option import RUN

BLOCK = re.compile(r"(<!-- options -->\n).*?(<!-- end of options -->)", re.DOTALL)
PAGE = "cli.md"
OTHER = "Other commands"
"""Heading of the options that no run has."""


def cli_page(text: str) -> str:
    """Return docs/cli.md with its table written anew."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{option_table()}\n{block[2]}", text)


def option_table() -> str:
    """Return a row for each option; one whose help differs between commands has several."""
    commands: dict[tuple[str, str], list[str]] = {}
    groups: dict[tuple[str, str], str] = {}
    texts = documented_keys()
    for command, options in declared_options().items():
        keys = {option.parameter: option.key for option in options_of(command)}
        for option in options:
            names = with_reference(_names(option), texts.get(keys.get(option.name or "", ""), ""), PAGE)
            row = (names, option.help or "")
            commands.setdefault(row, []).append(command)
            if command in RUN.split():
                groups.setdefault(row, option.rich_help_panel or BEHAVIOUR)
    lines = ["| option | meaning [default] | commands |\n| --- | --- | --- |\n"]
    for group in (*GROUPS, OTHER):
        lines.append(f"| **{group}** | | |\n")
        for (names, text), having in commands.items():
            if groups.get((names, text), OTHER) == group:
                lines.append(f"| {names} | {linked(text_of(text), PAGE)} | {commands_text(having)} |\n")
    return "".join(lines)


def declared_options() -> dict[str, list[TyperOption]]:
    """Return the options of each command in the order of its help."""
    group: Any = typer.main.get_command(application())
    return {
        name: [param for param in command.params if param.param_type_name == "option"]
        for name, command in group.commands.items()
    }


def commands_text(names: list[str]) -> str:
    """Return the commands of an option: `runs` for those that run, `runs but demo` if few of them lack it."""
    runs = RUN.split()
    lacking = [name for name in runs if name not in names]
    others = [name for name in names if name not in runs]
    if len(lacking) > 2:
        return ", ".join(names)
    exception = f" but {' and '.join(lacking)}" if lacking else ""
    return ", ".join([f"runs{exception}", *others])


def _names(option: TyperOption) -> str:
    names = [*sorted(option.opts, key=len), *option.secondary_opts]
    names[-1] += f" {option.metavar}" if option.metavar else ""
    return text_of(", ".join(f"`{name}`" for name in names))
