"""Labelled frames on a stock model's grid."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from evaluation.errors import PicturesError
from evaluation.real.frames import LARGEST_PX, PREPROCESSING, ShownFrame, shown_frames
from evaluation.real.labels import Folders, labelled_frames


def shown(folders: Folders, labels: Path) -> list[ShownFrame]:
    return list(shown_frames(labelled_frames(path=labels), folders))


def test_a_clip_comes_with_the_second_before(folders: Folders, labels: Path) -> None:
    early, late, picture = shown(folders, labels)
    assert [len(frame.images) for frame in (early, late, picture)] == [5, 11, 1]
    assert [stamp.frame_index for stamp in late.stamps] == list(range(11))
    assert late.stamps[-1].media_ns - late.stamps[0].media_ns == 1_000_000_000
    top = np.argwhere(late.image[..., 0] > 150)[:, 0].min()
    assert abs(int(top) - 8 * 16) <= 2


def test_files_that_are_not_there_are_left_out(folders: Folders, labels: Path) -> None:
    names = [frame.label.source.name for frame in shown(folders, labels)]
    assert names == ["moving.mkv", "moving.mkv", "square.png"]


def test_a_box_is_spread_over_its_tiles(folders: Folders, labels: Path) -> None:
    picture = shown(folders, labels)[2]
    coverage = picture.coverage(picture.label.boxes[0])
    assert coverage.shape == picture.grid.shape == (8, 12)
    assert coverage[2:4, 2:4].tolist() == [[0.25, 0.25], [0.25, 0.25]]
    assert coverage.sum() == 1


def test_large_pictures_are_scaled_to_720p() -> None:
    image, grid = PREPROCESSING.fit(np.zeros((2160, 3840, 3), np.uint8))
    assert image.shape[0] * image.shape[1] <= LARGEST_PX
    assert grid.tiles > 800


def test_a_frame_of_another_size_is_refused(folders: Folders, labels: Path) -> None:
    content = json.loads(labels.read_text("utf-8"))
    content["frames"][2]["size"] = [384, 200]
    labels.write_text(json.dumps(content), "utf-8")
    with pytest.raises(PicturesError, match=r"square.png has 384x256 pixels, was labelled with 384x200"):
        shown(folders, labels)


def test_a_picture_that_cannot_be_read_is_named(
    folders: Folders, labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cv2, "imread", lambda *_: None)
    with pytest.raises(PicturesError, match=r"square.png cannot be read as a picture"):
        shown(folders, labels)
