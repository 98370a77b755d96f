"""Text from elsewhere, as a terminal may show it."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.untrusted import MARKS_MAX, printable, printable_json, printable_lines, printable_span, replace_surrogates
from tests.hostile.nasty import FORBIDDEN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b]0;owned\x07a\x1b[2J\x1b[1;31mb", "ab"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9d0;owned\x9ca\x9b2Jb", "ab"),
        ("\x1bP1$r\x1b\\a\x1bcb\x1b(0c", "abc"),
        ("\x1b\x1b[m[31mred", "[31mred"),
        ("\x1b]0;no end", "0;no end"),
        ("a\u202eb\u2066c\u200fd\u061ce", "abcde"),
        ("a\u2028b\u2029c\x85d\ve\ff\r\ng", "a b c d e f g"),
        ("pass\u200bword\u200dis\u2060here\ufeff\xad", "passwordishere"),
        ("\U000e0041\U000e0042tag\u3164", "tag"),
        ("caf\udce9.mp4", "caf\\xe9.mp4"),
        ("a\ud83d\udc80b\ud800c\udc00", "a\ufffd\ufffdb\ufffdc\ufffd"),
        ("\x00\x07\x08\x7f", ""),
    ],
)
def test_control_sequences_and_invisible_characters_are_removed(text: str, expected: str) -> None:
    assert printable(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a red circle — über [bold]x[/bold] {\\an8} <b>",
        "日本語のテキスト",
        "سلام، می‌خواهم",
        "שָׁלוֹם",
        "क्‍ष हिन्दी",
        "ที่นี่",
        "👨‍👩‍👧‍👦 ❤️ 🏳️‍🌈 🇩🇪 \U0001fae8",
        "e\u0301 ệ",
    ],
)
def test_words_in_any_script_stay(text: str) -> None:
    assert printable(text) == text


def test_lines_stay_lines_only_on_request() -> None:
    text = "one\ttwo\r\nthree\x1b[2J\u2028four  five"
    assert printable_lines(text) == "one two\nthree\nfour  five"
    assert printable_span(text) == "one two three four  five"
    assert printable(text) == "one two three four five"


def test_marks_do_not_pile_up() -> None:
    text = printable("Z" + "\u0301" * 500 + "x")
    assert sum(unicodedata.combining(char) > 0 for char in text) == MARKS_MAX


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_becomes_printable_utf8_and_stays_so(text: str) -> None:
    for printable_text in (printable(text), printable_span(text), printable_lines(text)):
        assert not FORBIDDEN.search(printable_text.replace("\n", ""))
        printable_text.encode()
    once = printable(text)
    assert printable(once) == once
    assert "\n" not in printable_span(text)


@given(st.text())
def test_json_keeps_its_value_and_is_printable(text: str) -> None:
    line = printable_json(json.dumps({"text": text}, ensure_ascii=False))
    assert json.loads(line) == {"text": text}
    assert not FORBIDDEN.search(line)


def test_characters_outside_utf8_are_replaced() -> None:
    assert replace_surrogates("a\ud800b\x1b") == "a\ufffdb\x1b"
