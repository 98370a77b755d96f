"""Question files: one question a line, and what is wrong with one, in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from arr_coc.adaptation.questions import GENERIC_QUESTIONS, LONGEST_CHARS, read_question_file
from arr_coc.errors import OptionError


def test_questions_are_lines_each_once_without_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text("Who is there?\n\n  What is red?  \nWho is there?\n")
    assert read_question_file(path) == ("Who is there?", "What is red?")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no question; write one question a line, or leave it out"),
        (b" \n\n", "holds no question"),
        (b"\xff\xfe\x00x", "is no text in UTF-8; write one question a line"),
        (b"Who?\nW\0ho?", "line 2 of .* is no text"),
        (b"x" * (LONGEST_CHARS + 1), f"line 1 of .* is {LONGEST_CHARS + 1} characters long"),
    ],
)
def test_files_that_hold_no_questions_are_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "questions.txt"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=message) as refused:
        read_question_file(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="No such file or directory; name a text file with one question a line"):
        read_question_file(tmp_path / "What is red?")


def test_generic_questions_are_many_and_differ() -> None:
    assert len(GENERIC_QUESTIONS) == len(set(GENERIC_QUESTIONS)) >= 40
