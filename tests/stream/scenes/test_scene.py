"""Drawn scenes: the same frames every time, and facts that hold of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.config import CaptureConfig
from stream.errors import SourceNotFound
from stream.scenes import PACED_SCENES, SCENE_NAMES, GroundTruth, PacedScene, Scene, SceneObject, load_scene, open_scene
from stream.scenes.drawing import COLOURS, MOVEMENTS, PLACES, SHAPES, Movement, Shape, draw_object, gradient, page
from stream.sources.factory import open_source
from tests.support.clock import FakeClock

TILE_PX = 32


def changed_tiles(before: np.ndarray, after: np.ndarray) -> float:
    """Share of tiles with any difference."""
    differs = (before != after).any(axis=2)
    rows, cols = differs.shape[0] // TILE_PX, differs.shape[1] // TILE_PX
    tiles = differs[: rows * TILE_PX, : cols * TILE_PX].reshape(rows, TILE_PX, cols, TILE_PX)
    return float(tiles.any(axis=(1, 3)).mean())


@pytest.mark.parametrize("name", SCENE_NAMES)
def test_a_scene_gives_the_same_frames_every_time_and_owns_them(name: str) -> None:
    scene, second_scene = load_scene(name), load_scene(name)
    for frame_index in (0, scene.frames // 2, scene.frames - 1):
        image = scene.render(frame_index)
        assert image.shape == (scene.height_px, scene.width_px, 3)
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image, second_scene.render(frame_index))
        image[:] = 0
        np.testing.assert_array_equal(scene.render(frame_index), second_scene.render(frame_index))


@pytest.mark.parametrize("frame_index", [-1, 288])
def test_frames_outside_the_scene_are_refused(frame_index: int) -> None:
    with pytest.raises(IndexError, match=r"frames 0\.\.287"):
        load_scene("demo").render(frame_index)
    with pytest.raises(IndexError):
        load_scene("demo").facts(frame_index)


def test_an_unknown_name_gets_the_nearest_right_one() -> None:
    with pytest.raises(SourceNotFound, match="did you mean scene:demo"):
        load_scene("demmo")
    with pytest.raises(SourceNotFound, match="there are demo, static"):
        load_scene("xyz")


def test_the_demo_has_a_story() -> None:
    scene = load_scene("demo")
    captions = [scene.facts(frame_index).caption for frame_index in range(scene.frames)]
    story = [caption for index, caption in enumerate(captions) if index == 0 or caption != captions[index - 1]]
    assert story == [
        "a red circle moves right and a blue square stays still.",
        "a red circle stays still and a blue square stays still.",
        "a green star moves up and a black square stays still.",
        "a green star stays still and a black square stays still.",
        "a yellow triangle stays still and a purple ring moves down.",
        "a yellow triangle stays still, a purple ring moves down and a white cross moves left.",
        "a yellow triangle stays still, a purple ring moves down and a white cross stays still.",
    ]
    assert scene.frames == 12 * scene.fps


def test_the_demo_changes_few_tiles_but_at_cuts() -> None:
    scene = load_scene("demo")
    for cut in scene.cuts:
        assert changed_tiles(scene.render(cut - 1), scene.render(cut)) > 0.9
    for frame_index in (10, 40, 150, 250):
        assert 0 < changed_tiles(scene.render(frame_index), scene.render(frame_index + 1)) < 0.15


def test_static_stands_still_and_noise_is_static_with_a_sigma_of_two() -> None:
    static, noise = load_scene("static"), load_scene("noise")
    np.testing.assert_array_equal(static.render(0), static.render(static.frames - 1))
    difference = noise.render(7).astype(int) - static.render(7)
    middle = difference[100:300, 300:400]
    assert middle.std() == pytest.approx(2.0, abs=0.1)
    assert middle.mean() == pytest.approx(0.0, abs=0.05)
    assert (noise.render(7) != noise.render(8)).mean() > 0.5


def test_pan_shifts_the_whole_picture_by_two_pixels_a_frame() -> None:
    scene = load_scene("pan")
    before, after = scene.render(10), scene.render(11)
    assert (before[:, 2:] == after[:, :-2]).mean() > 0.99
    assert {thing.movement for thing in scene.facts(10).things} == {"still"}


def test_something_moves_in_every_frame_of_moving() -> None:
    scene = load_scene("moving")
    for frame_index in range(0, scene.frames - 1, 20):
        assert "still" not in {thing.movement for thing in scene.facts(frame_index).things}
        assert changed_tiles(scene.render(frame_index), scene.render(frame_index + 1)) > 0


@given(st.floats(0, 0.999), st.floats(0, 0.999))
def test_the_nine_places_are_thirds_by_thirds(x_share: float, y_share: float) -> None:
    thing = SceneObject("circle", "red", x_share * 600, y_share * 300, 10)
    row, col = divmod(PLACES.index(thing.place(600, 300)), 3)
    assert row == int(y_share * 300 * 3 / 300)
    assert col == int(x_share * 600 * 3 / 600)


def test_facts_name_what_is_seen_from_left_to_right() -> None:
    things = [
        SceneObject("ring", "orange", 300, 50, 40, "up"),
        SceneObject("number", "blue", 100, 50, 40, number=17),
        SceneObject("star", "red", -30, 50, 40),
    ]
    facts = GroundTruth.of(400, 100, things)
    assert facts.caption == "a blue number 17 stays still and an orange ring moves up."
    assert GroundTruth.of(400, 100, []).caption == "nothing is there."


@pytest.mark.parametrize("movement", MOVEMENTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_thing_is_drawn_inside_its_box_with_its_streak_behind_it(shape: Shape, movement: Movement) -> None:
    thing = SceneObject(shape, "red", 200, 200, 80, movement, 42 if shape == "number" else None)
    image = gradient(400, 400, (128, 128, 128), (128, 128, 128))
    draw_object(image, thing)
    rows, cols = np.nonzero((image != 128).any(axis=2))
    left, top, right, bottom = thing.box_px(streak=True)
    assert min(cols.min() - left, right - cols.max(), rows.min() - top, bottom - rows.max()) >= -2
    reach = {"left": cols.max() - 200, "right": 200 - cols.min(), "up": rows.max() - 200, "down": 200 - rows.min()}
    for way, reached_px in reach.items():
        assert (reached_px > 90) == (way == movement)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_thing_has_its_colour(colour: str) -> None:
    image = gradient(64, 64, (128, 128, 128), (128, 128, 128))
    draw_object(image, SceneObject("square", colour, 32, 32, 40))
    assert tuple(image[32, 32]) == COLOURS[colour]


def test_things_across_the_edge_are_cut_off() -> None:
    image = gradient(64, 64, (128, 128, 128), (128, 128, 128))
    for shape in SHAPES:
        draw_object(image, SceneObject(shape, "red", 0, 64, 40, "up", 10 if shape == "number" else None))
        draw_object(image, SceneObject(shape, "red", 500, 500, 40, "left", 10 if shape == "number" else None))
    assert (image[30, 30] == 128).all()


def test_backgrounds() -> None:
    image = gradient(60, 40, (10, 20, 30), (200, 100, 50))
    assert tuple(image[0, 0]) == (10, 20, 30)
    assert tuple(image[-1, -1]) == (200, 100, 50)
    np.testing.assert_array_equal(image[:, 0], image[:, -1])
    page_image = page(200, 100, (180, 180, 180), (120, 120, 120), 12, np.random.default_rng(0))
    assert set(np.unique(page_image)) == {120, 180}


PACED_TILE_PX = 32


@pytest.fixture(scope="module")
def scene() -> PacedScene:
    paced_scene = open_scene("paced-720p30")
    assert isinstance(paced_scene, PacedScene)
    return paced_scene


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
    planes = [plane.copy() for plane in first.planes]
    for plane in first.planes:
        plane[:] = 0
    for plane, repeated_plane, other_plane in zip(
        planes, scene.planes(100).planes, open_scene(scene.name).planes(100).planes, strict=True
    ):
        np.testing.assert_array_equal(plane, repeated_plane)
        np.testing.assert_array_equal(plane, other_plane)


@pytest.mark.parametrize("frame_index", [-1, 108_000])
def test_frames_outside_the_hour_are_refused(scene: PacedScene, frame_index: int) -> None:
    with pytest.raises(IndexError, match=r"frames 0\.\.107999"):
        scene.planes(frame_index)
    with pytest.raises(IndexError, match=r"frames 0\.\.107999"):
        scene.facts(frame_index)


def test_a_few_tiles_change_in_every_frame(scene: PacedScene) -> None:
    for frame_index in (0, 77, 500, scene.frames - 2):
        differs = scene.planes(frame_index).planes[0] != scene.planes(frame_index + 1).planes[0]
        tiles = differs[:704].reshape(22, PACED_TILE_PX, 40, PACED_TILE_PX).any(axis=(1, 3))
        assert 0.01 < tiles.mean() < 0.15


def test_the_moving_part_leaves_no_seam_in_the_ground(scene: PacedScene) -> None:
    picture = scene.render(100).astype(int)
    edges = np.abs(np.diff(picture[110:300, 0::16].mean(axis=2), axis=0))
    assert np.median(edges) <= 2
    rows = picture[scene._top_px - 1 : scene._top_px + 1, :100].mean(axis=(1, 2))
    assert abs(rows[1] - rows[0]) < 2


def test_the_objects_of_a_paced_scene_are_at_their_boxes(scene: PacedScene) -> None:
    for frame_index in (0, 100, scene.frames - 1):
        image, facts = scene.render(frame_index), scene.facts(frame_index)
        assert [label for label, _ in facts.labels] == ["red circle moves right", "blue square stays still"]
        for thing in facts.things:
            colour = image[round(thing.y_px), round(thing.x_px)].astype(int)
            assert np.abs(colour - COLOURS[thing.colour]).max() < 12
            left, top, right, _ = (round(edge) for edge in thing.box_px())
            for x, y in ((right - 12, round(thing.y_px)), (round(thing.x_px), top + 12)):
                assert np.abs(image[y, x].astype(int) - colour).max() < 12
            assert np.abs(image[top - 8, left].astype(int) - colour).max() > 40


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
