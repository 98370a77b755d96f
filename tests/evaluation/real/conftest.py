"""A picture and a clip with labels, without a download."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from evaluation.real.labels import Folders
from tests.support.video import make_video

FPS = 10


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """A grey picture with a bright textured square, and a clip in which a square moves down on grey."""
    folders = Folders(tmp_path / "clips", tmp_path / "pictures")
    folders.clips.mkdir()
    picture = np.full((256, 384, 3), 90, np.uint8)
    picture[64:128, 64:128] = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    file = folders.pictures / "some-package" / "share" / "square.png"
    file.parent.mkdir(parents=True)
    cv2.imwrite(str(file), picture)
    images = []
    for number in range(2 * FPS):
        image = np.full((256, 384, 3), 90, np.uint8)
        image[8 * number : 8 * number + 40, 100:140] = (200, 60, 60)
        images.append(image)
    make_video(folders.clips / "moving.mkv", images, FPS)
    return folders


@pytest.fixture
def labels(folders: Folders, tmp_path: Path) -> Path:
    """Their labels: the picture, two frames of the clip, and a picture that is not there."""

    def source(name: str, file: Path, **more: object) -> dict[str, object]:
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "0"
        return {"name": name, "sha256": digest, "licence": "CC0-1.0", "publish": True, **more}

    pictures = folders.pictures / "some-package" / "share"
    package = {"package": "some-package", "kind": "debian"}
    content = {
        "sources": [
            source("moving.mkv", folders.clips / "moving.mkv", clip="moving.mkv", moves=True),
            source("square.png", pictures / "square.png", path="share/square.png", **package),
            source("gone.png", pictures / "gone.png", path="share/gone.png", **package),
        ],
        "frames": [
            {
                "source": "moving.mkv",
                "frame": number,
                "size": [384, 256],
                "boxes": [{"class": "object", "box": [100, 8 * number, 140, 8 * number + 40], "moving": True}],
            }
            for number in (4, 16)
        ]
        + [
            {"source": name, "size": [384, 256], "boxes": [{"class": "face", "box": [64, 64, 128, 128]}]}
            for name in ("square.png", "gone.png")
        ],
    }
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(content), "utf-8")
    return path
