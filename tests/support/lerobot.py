"""A small LeRobot dataset (format 3), as recording with LeRobot writes it: several episodes in one video."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support.video import Image, make_video

FPS = 10

GREYS = (40, 120, 200)
"""Brightness of each episode's pictures, so that a test sees which one it reads."""


def picture(grey: int, number: int) -> Image:
    """A picture of one brightness, with a bar as long as `number`: uint8 RGB [48, 64, 3]."""
    image = np.full((48, 64, 3), grey, np.uint8)
    image[:8, : 2 * number + 2] = 255
    return image


def make_dataset(
    folder: Path, frames: Sequence[int] = (8, 5, 12), cameras: Sequence[str] = ("top", "wrist"), codec: str = "libx264"
) -> Path:
    """Write a dataset with `frames` frames in each episode; the second camera's pictures are 10 darker."""
    import pyarrow
    import pyarrow.parquet

    keys = [f"observation.images.{camera}" for camera in cameras]
    info = {
        "codebase_version": "v3.0",
        "fps": FPS,
        "total_episodes": len(frames),
        "total_frames": sum(frames),
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {
            "action": {"dtype": "float32", "shape": [6]},
            **{key: {"dtype": "video", "shape": [48, 64, 3]} for key in keys},
        },
    }
    for place in ("meta/episodes/chunk-000", *(f"videos/{key}/chunk-000" for key in keys)):
        (folder / place).mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    options = {"preset": "11"} if codec == "libsvtav1" else {"bf": "0"}
    for darker, key in enumerate(keys):
        pictures = (
            picture(GREYS[episode] - 10 * darker, number)
            for episode, count in enumerate(frames)
            for number in range(count)
        )
        video = folder / "videos" / key / "chunk-000" / "file-000.mp4"
        make_video(video, pictures, FPS, codec=codec, options={"g": "2", "crf": "20", **options})
    starts = [sum(frames[:episode]) / FPS for episode in range(len(frames) + 1)]
    columns: dict[str, object] = {
        "episode_index": list(range(len(frames))),
        "tasks": [["push the block"]] * len(frames),
        "length": list(frames),
    }
    for key in keys:
        columns[f"videos/{key}/chunk_index"] = [0] * len(frames)
        columns[f"videos/{key}/file_index"] = [0] * len(frames)
        columns[f"videos/{key}/from_timestamp"] = starts[:-1]
        columns[f"videos/{key}/to_timestamp"] = starts[1:]
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    return folder
