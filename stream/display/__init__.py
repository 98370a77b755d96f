"""Displays of one or several cameras for the person at the terminal, and the choice between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of a display that is watched: time between lines of figures; whether lines of standard input are
    questions even if that is no terminal, and whether they may be if it is one; and whether a live view may be
    shown."""

    every_s: float | None
    ask_stdin: bool = False
    keyboard: bool = True
    live: bool = True
