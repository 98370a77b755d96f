"""An option that takes a word, as every command declares it."""

from __future__ import annotations

from typing import Any

import typer


def text_option(*names: str, metavar: str, help: str) -> Any:
    """The option under all of its `names`; its default, which `help` tells, is not shown."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)
