"""The committed labels hold, and are split by clips and pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.real.labels import CLASSES, Folders, LabelledFrame, labelled_frames

FRAMES = labelled_frames()


def test_there_are_as_many_frames_as_the_documents_say() -> None:
    assert len(FRAMES) == 124
    assert sum(frame.source.moves for frame in FRAMES) == 75


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: f"{frame.source.name}-{frame.frame}")
def test_boxes_lie_in_their_frame(frame: LabelledFrame) -> None:
    width_px, height_px = frame.size_px
    assert 1 <= len(frame.boxes) <= 6
    for box in frame.boxes:
        left, top, right, bottom = box.box
        assert box.name in CLASSES
        assert 0 <= left < right <= width_px
        assert 0 <= top < bottom <= height_px


def test_sources_say_where_they_come_from() -> None:
    for source in {frame.source for frame in FRAMES}:
        assert source.licence
        assert len(source.sha256) == 64
        assert bool(source.package) == (source.kind in ("debian", "wheel", "sdist"))
        assert not Path(source.path).is_absolute()


def test_halves_share_no_clip() -> None:
    choose, report = labelled_frames("choose"), labelled_frames("report")
    assert len(choose) + len(report) == len(FRAMES)
    assert not {frame.source for frame in choose} & {frame.source for frame in report}
    assert min(len(choose), len(report)) > len(FRAMES) // 3


def test_what_moves_counts_twice(labels: Path) -> None:
    frames = labelled_frames(path=labels)
    assert frames[0].boxes[0].classes == ("object", "moving")
    assert frames[2].boxes[0].classes == ("face",)


def test_another_file_is_not_used(folders: Folders, labels: Path) -> None:
    clip, _, picture, gone = (frame.source for frame in labelled_frames(path=labels))
    assert [source.absence(folders) for source in (clip, picture)] == [None, None]
    assert gone.absence(folders) == "absent"
    with picture.file(folders).open("ab") as file:
        file.write(b"more")
    assert picture.absence(folders) == "another file than the one that was labelled"
