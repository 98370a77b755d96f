"""Answers written as they come, and read again after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.errors import ResultsError
from evaluation.journal import AnswerJournal, key_of, model_hash
from tests.support.evaluation import row


def test_rows_are_there_for_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "answers.jsonl"
    with AnswerJournal(path) as journal:
        journal.add(row(id="0"))
        journal.add(row(id="1", text="blue"))
    with AnswerJournal(path) as journal:
        assert key_of(row(id="1")) in journal
        assert key_of(row(id="1", model="another")) not in journal
        assert [entry["text"] for entry in journal.rows(iter([key_of(row(id="1")), key_of(row(id="2"))]))] == ["blue"]


def test_a_line_that_a_kill_cut_off_is_dropped_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with AnswerJournal(path) as journal:
        journal.add(row(id="0"))
    content = path.read_bytes()
    path.write_bytes(content + b'{"model": "m", "sui')
    with AnswerJournal(path) as journal:
        assert len(journal.rows(iter([key_of(row(id="0"))]))) == 1
        journal.add(row(id="1"))
    lines = path.read_bytes().splitlines(keepends=True)
    assert lines[0] == content
    assert len(lines) == 2


def test_each_row_is_on_disk_before_the_next_question(tmp_path: Path) -> None:
    with AnswerJournal(tmp_path / "answers.jsonl") as journal:
        journal.add(row(id="0"))
        assert (tmp_path / "answers.jsonl").read_bytes().endswith(b"}\n")


def test_fresh_forgets(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with AnswerJournal(path) as journal:
        journal.add(row())
    with AnswerJournal(path, fresh=True) as journal:
        assert key_of(row()) not in journal


@pytest.mark.parametrize("line", ["not json\n", "[1, 2]\n", '{"model": "m"}\n', "3\n"])
def test_a_file_of_something_else_is_refused_by_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    with AnswerJournal(path) as journal:
        journal.add(row())
    path.write_text(path.read_text() + line)
    with pytest.raises(ResultsError, match=r"line 2 of .*answers.jsonl is no answer of an evaluation; remove"):
        AnswerJournal(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="choose another --out"):
        AnswerJournal(tmp_path / "file" / "answers.jsonl")


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full, AnswerJournal(tmp_path / "other.jsonl") as journal:
        journal._file, file = full, journal._file  # type: ignore[assignment]
        with pytest.raises(ResultsError, match="No space left on device; what it holds is kept"):
            journal.add(row())
        journal._file = file


def test_a_model_is_named_by_what_is_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "README.md").write_text("card")
    first = model_hash(tmp_path)
    (tmp_path / "README.md").write_text("another card")
    assert model_hash(tmp_path) == first
    (tmp_path / "allocator").mkdir()
    (tmp_path / "allocator" / "model.safetensors").write_bytes(b"more")
    second = model_hash(tmp_path)
    assert second != first
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    assert model_hash(tmp_path) not in (first, second)
