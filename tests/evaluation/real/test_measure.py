"""Figures over labelled frames."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evaluation.real import __main__ as command
from evaluation.real import measure as measuring
from evaluation.real import sheet
from evaluation.real.frames import shown_frames
from evaluation.real.labels import LABELS, Folders, labelled_frames
from evaluation.real.measure import absent_sources, labels_hash, measure, table
from evaluation.strategies.base import Budget


def test_cells_hold_means_by_class(folders: Folders, labels: Path) -> None:
    figures = measure(shown_frames(labelled_frames(path=labels), folders), ["chance", "ceiling"], [Budget(25)])
    assert figures["frames"] == 3
    cells = {(cell["strategy"], cell["class"]): cell for cell in figures["cells"]}
    assert cells["chance", "all"]["full"] == {"mean": 0.25, "low": 0.25, "high": 0.25}
    assert cells["ceiling", "face"]["full"]["mean"] == 1
    assert [cells["chance", name]["boxes"] for name in ("all", "face", "object", "moving")] == [3, 1, 2, 2]
    assert cells["chance", "all"]["pictures"] == 2
    assert ("chance", "words") not in cells
    lines = table(figures["cells"]).splitlines()
    assert lines[0].split() == ["strategy", "budget", "full", "95", "%", "half", "any", "face", "moving", "object"]
    assert lines[1].split() == ["chance", "25%", "25.0", "25.0-25.0", "25.0", "25.0", "25", "25", "25"]


def test_absent_sources_are_counted(folders: Folders, labels: Path) -> None:
    absent = absent_sources(labelled_frames(path=labels), folders)
    assert absent == {"gone.png": {"reason": "absent", "frames": 1}}


@pytest.fixture
def own_labels(labels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reads the labels of the test."""
    for module in (command, sheet):
        monkeypatch.setattr(module, "labelled_frames", lambda half="all": labelled_frames(half, labels))
    monkeypatch.setattr(measuring, "LABELS", labels)


@pytest.mark.usefixtures("own_labels")
def test_the_command_writes_figures_and_a_sheet(folders: Folders, tmp_path: Path) -> None:
    out = tmp_path / "real.json"
    places = ["--clips", str(folders.clips), "--pictures", str(folders.pictures)]
    run = CliRunner().invoke(command.app, [*places, "--strategy", "mixed,chance", "--out", str(out)])
    assert run.exit_code == 0, run.output
    figures = json.loads(out.read_text("utf-8"))
    assert figures["absent"] == {"gone.png": {"reason": "absent", "frames": 1}}
    assert {cell["budget"] for cell in figures["cells"]} == {"27%", "10%"}
    assert "left out gone.png (1 frame): absent" in run.output
    drawn = tmp_path / "sheet.jpg"
    assert CliRunner().invoke(command.app, ["sheet", *places, "--out", str(drawn)]).exit_code == 0
    assert drawn.read_bytes().startswith(b"\xff\xd8")


@pytest.mark.usefixtures("own_labels")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--half", "left"], "unknown half 'left'; there are choose, report, all"),
        (["--clips", "nowhere", "--pictures", "nowhere"], "no labelled picture is there"),
        (["--out", "nowhere/real.json", "--strategy", "chance"], "cannot write nowhere/real.json"),
    ],
)
def test_bad_requests_get_one_line(folders: Folders, options: list[str], message: str) -> None:
    places = ["--clips", str(folders.clips), "--pictures", str(folders.pictures)]
    run = CliRunner().invoke(command.app, [*places, *options])
    assert run.exit_code == 2
    assert message in run.output.splitlines()[-1]


@pytest.mark.usefixtures("own_labels")
def test_a_sheet_without_pictures_or_a_folder_is_refused(folders: Folders, tmp_path: Path) -> None:
    nowhere = CliRunner().invoke(command.app, ["sheet", "--clips", "nowhere", "--pictures", "nowhere"])
    assert "no picture of the sheet is there" in nowhere.output
    places = ["--clips", str(folders.clips), "--pictures", str(folders.pictures)]
    run = CliRunner().invoke(command.app, ["sheet", *places, "--out", str(tmp_path / "nowhere" / "sheet.jpg")])
    assert "choose another --out" in run.output


def test_the_committed_figures_are_of_the_committed_labels() -> None:
    figures = json.loads(command.RESULTS.read_text("utf-8"))
    assert figures["labels"] == labels_hash()
    assert figures["frames"] == len(labelled_frames())
    assert LABELS.is_file()
