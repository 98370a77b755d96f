"""One text with every sequence that a terminal, a player or a reader of lines would obey."""

from __future__ import annotations

import re

TITLE = "\x1b]0;owned\x07"
CLEAR = "\x1b[2J\x1b[H\x1b[3J"

NASTY = (
    f"plain {TITLE}{CLEAR}\x9b31mred\x9d2;t\x9c \x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\ "
    "[link=http://x]a[/link] [bold]b[/bold] :smile: \u202egnp.exe\u202c \u2066iso\u2069 zero\u200bwidth\ufeff"
    "\x00\x07\x08\x7f\n\n00:00:00.000 --> 00:00:09.000\nforged cue\n\nNOTE hidden\n\nSTYLE\n::cue { color: red }\n\n"
    "1\n00:00:00,000 --> 00:00:09,000\nforged too\n\n<b>bold</b> <c.red>x</c> <00:00:01.000> {\\an8} {y:b} &amp;\r\n"
    "\u2028next\u2029last\x85 \U000e0041\u3164 end"
)

SHOWN = ("plain", "[link=http://x]a[/link]", "[bold]b[/bold]", ":smile:", "zerowidth", "forged cue", "last", "end")
"""Parts of it that outputs must show."""

FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\u3164\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
"""Sequences that no line of an output may hold."""

BROKEN_NAME = b"caf\xe9\x1b]0;owned\x07".decode("utf-8", "surrogateescape")
"""The name of a file as the system returns it if its bytes are not UTF-8."""
