"""The scene of a steady pace: cheap, the same every time, and as even as its schedule."""

from __future__ import annotations

import numpy as np
import pytest

from stream.clock import FakeClock
from stream.config import CaptureConfig
from stream.errors import SourceNotFound
from stream.scenes import PACED_SCENES, PacedScene, Scene, open_scene
from stream.sources.open import open_source

TILE_PX = 32


@pytest.fixture(scope="module")
def scene() -> PacedScene:
    made = open_scene("paced-720p30")
    assert isinstance(made, PacedScene)
    return made


@pytest.mark.parametrize("name", PACED_SCENES)
def test_names_say_height_and_rate(name: str) -> None:
    scene = open_scene(name)
    assert name == f"paced-{scene.height_px}p{scene.fps}"
    assert (scene.width_px * 9, scene.frames) == (scene.height_px * 16, 3600 * scene.fps)


def test_other_names_open_what_they_did_or_get_the_nearest_right_one() -> None:
    assert isinstance(open_scene("demo"), Scene)
    with pytest.raises(SourceNotFound, match="did you mean scene:paced-1080p30"):
        open_scene("paced-1080p31")
    with pytest.raises(SourceNotFound, match=r"there are demo, .*paced-720p30"):
        open_scene("xyz")


def test_frames_are_planes_that_the_caller_owns_and_the_same_every_time(scene: PacedScene) -> None:
    first = scene.planes(100)
    assert (first.layout, [plane.shape for plane in first.planes]) == ("yuv", [(720, 1280), (360, 640), (360, 640)])
    kept = [plane.copy() for plane in first.planes]
    for plane in first.planes:
        plane[:] = 0
    for plane, again, other in zip(
        kept, scene.planes(100).planes, open_scene(scene.name).planes(100).planes, strict=True
    ):
        np.testing.assert_array_equal(plane, again)
        np.testing.assert_array_equal(plane, other)


@pytest.mark.parametrize("frame_index", [-1, 108_000])
def test_frames_outside_the_hour_are_refused(scene: PacedScene, frame_index: int) -> None:
    with pytest.raises(IndexError, match=r"frames 0\.\.107999"):
        scene.planes(frame_index)


def test_a_few_tiles_change_in_every_frame(scene: PacedScene) -> None:
    for frame_index in (0, 77, 500, scene.frames - 2):
        differs = scene.planes(frame_index).planes[0] != scene.planes(frame_index + 1).planes[0]
        tiles = differs[:704].reshape(22, TILE_PX, 40, TILE_PX).any(axis=(1, 3))
        assert 0.01 < tiles.mean() < 0.15


def test_the_moving_part_leaves_no_seam_in_the_ground(scene: PacedScene) -> None:
    picture = scene.render(100).astype(int)
    edges = np.abs(np.diff(picture[110:300, 0::16].mean(axis=2), axis=0))
    assert np.median(edges) <= 2
    rows = picture[scene._top_px - 1 : scene._top_px + 1, :100].mean(axis=(1, 2))
    assert abs(rows[1] - rows[0]) < 2


def test_it_is_a_source_in_planar_yuv_that_can_be_fitted() -> None:
    clock = FakeClock(11)
    with open_source("scene:paced-720p60", CaptureConfig(max_frames=2), clock) as source:
        assert source.describe().pixel_format == "yuv420p"
        frames = list(source.frames())
    assert [frame.media_ns for frame in frames] == [0, 16_666_666]
    assert frames[0].planes.layout == "yuv"
    with open_source("scene:paced-720p60", CaptureConfig(max_frames=1, fit="resize", max_tiles=100), clock) as source:
        (frame,) = source.frames()
    assert frame.planes.layout == "rgb"
