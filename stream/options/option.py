"""Command-line option of a configuration key, as metadata of the key's field; loads nothing, for a fast `--help`."""

from __future__ import annotations

import re
from dataclasses import dataclass

RUN = "caption watch fleet web demo bench"
"""Commands that run: they have every option that names no commands."""

_SPELLING = re.compile(r"(?:(?P<short>-\w), )?(?P<name>--[\w-]+)(?P<switch> / --[\w-]+)?(?: (?P<metavar>.+))?")


@dataclass(frozen=True, slots=True)
class Option:
    """Option that sets a key of the configuration, in the annotation of the key's field in `stream.config`.

    The options of the commands, and their tables in docs/cli.md and docs/configuration.md, are generated from it. A
    field has several options if the help differs between commands.
    """

    spelling: str
    """As the help shows it: `-q, --query TEXT`, `--force`, `--glance / --no-glance`. A TIME is a media time."""
    help: str
    """Text of the help, with the default in brackets at its end. `{default}` is that of the field, `{choices}` are the
    values that its type lists, `{suffixes}` those of caption outputs."""
    without: str = ""
    """Commands of `RUN` that do not have it."""
    also: str = ""
    """Other commands that have it."""
    only: str = ""
    """Commands that have it, in place of those of `RUN`."""
    group: str = ""
    """Group of the help, if not that of its key."""
    key: str = ""
    """Dotted key and, below, the kind of value: `text` as given, a TOML `value`, a `time`, a `list`, or a `flag`. The
    generated table has them from the field."""
    kind: str = ""

    @property
    def commands(self) -> list[str]:
        """Names of the commands that have it."""
        run = [command for command in RUN.split() if command not in self.without.split()]
        return self.only.split() or [*run, *self.also.split()]

    @property
    def names(self) -> tuple[str, ...]:
        """Names as Typer takes them: those of a switch in one, then the short one."""
        match = self._parts()
        name = match["name"] + (match["switch"] or "").replace(" ", "")
        if match["short"]:
            return (name, match["short"])
        return (name,)

    @property
    def metavar(self) -> str | None:
        """Placeholder of the value; None for a flag."""
        return self._parts()["metavar"]

    @property
    def parameter(self) -> str:
        """Name of the parameter of a command."""
        return self._parts()["name"].removeprefix("--").replace("-", "_")

    def _parts(self) -> re.Match[str]:
        match = _SPELLING.fullmatch(self.spelling)
        assert match is not None, self.spelling
        return match
