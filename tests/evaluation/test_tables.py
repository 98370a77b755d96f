"""Tables of the documents: they are those of the committed figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation import tables
from evaluation.tables import ROOT, fill_tables, main, markdown


def test_the_documents_hold_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_a_number_that_was_not_measured_is_found_and_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    measured = tables.costs()
    wrong = text.replace(measured, measured.replace("| `still` | ", "| `still` | 1", 1))
    assert wrong != text
    (tmp_path / "README.md").write_text(wrong, "utf-8")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "DOCUMENTS", ("README.md",))
    assert main(["--check"]) == 1
    assert "README.md: its tables differ from the figures" in capsys.readouterr().out
    assert (tmp_path / "README.md").read_text("utf-8") == wrong
    assert main([]) == 0
    assert (tmp_path / "README.md").read_text("utf-8") == text


def test_text_between_tables_is_left_alone() -> None:
    text = "before\n<!-- table: costs -->\nold\n<!-- end -->\nafter <!-- end -->\n"
    assert fill_tables(text) == f"before\n<!-- table: costs -->\n{tables.costs()}<!-- end -->\nafter <!-- end -->\n"
    with pytest.raises(KeyError, match="nosuch"):
        fill_tables("<!-- table: nosuch -->\n<!-- end -->")


def test_a_table_has_a_line_of_dashes() -> None:
    assert markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
