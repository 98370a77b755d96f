"""Help texts, exit statuses and topics, equal to the golden files."""

from __future__ import annotations

import json
from pathlib import Path

from tests.golden import record
from tests.golden.test_runs import FILES


def contents(folder: Path) -> dict[str, str]:
    """The text of every file of a folder."""
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(folder.iterdir()) if file.is_file()}


def test_help(tmp_path: Path) -> None:
    record.help_texts(tmp_path)
    assert contents(tmp_path) == contents(FILES / "help")


def test_exit_statuses(tmp_path: Path) -> None:
    record.exit_statuses(tmp_path)
    statuses, golden = (json.loads((folder / "exit_statuses.json").read_text()) for folder in (tmp_path, FILES))
    assert statuses == golden


def test_topics(tmp_path: Path) -> None:
    record.topics(tmp_path)
    assert (tmp_path / "topics.json").read_text() == (FILES / "topics.json").read_text()
