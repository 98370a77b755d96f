"""Motion of tiles in drawn clips whose motion is known."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.types import FramePlanes, FrameStamp, TileGrid, TileMotion
from arr_coc.video.camera_motion import fit_camera
from arr_coc.video.texture_updater import TextureOptions, TextureUpdate, TextureUpdater
from arr_coc.video.tile_motion import ReferenceMotion
from tests.support.camera_moves import (
    COLS,
    HEIGHT,
    ROWS,
    WIDTH,
    Picture,
    Pose,
    clutter,
    document,
    film,
    planes,
    steps,
    tile_middles,
    wall_with_picture,
)

PANS = [(1.0, 0.0), (3.0, 2.0), (0.0, -8.0), (-20.0, 8.0), (45.0, 0.0)]


def updates(pictures: list[Picture], options: TextureOptions | None = None) -> list[TextureUpdate]:
    updater = TextureUpdater(options)
    return [updater.process(planes(picture), FrameStamp(i, 0, 0)) for i, picture in enumerate(pictures)]


def error_px(motion: TileMotion | None, origin: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Error of each tile's motion, in pixels."""
    way = tile_middles() - origin
    if motion is None:
        return np.hypot(way[..., 0], way[..., 1])
    return np.hypot(motion.dx_px - way[..., 0], motion.dy_px - way[..., 1])


def track(wide: Picture, poses: list[Pose]) -> None:
    """Nine tenths of the tiles that changed are right within two pixels, the others within half a tile, mostly."""
    updater = TextureUpdater()
    for index, step in enumerate(steps(wide, poses)):
        update = updater.process(planes(step.picture), FrameStamp(index, 0, 0))
        if index:
            changed = update.change.dirty & step.seen
            assert update.epoch_reason is None
            error = error_px(update.motion, step.origin)[changed]
            assert np.median(error) < 1
            assert np.percentile(error, 90) < 2.5
            assert (error > 16).mean() < 0.05


@pytest.mark.parametrize("draw", [clutter, document])
@pytest.mark.parametrize("way", PANS)
def test_a_pan(way: tuple[float, float], draw: type[clutter]) -> None:  # type: ignore[valid-type]
    track(draw(1), [(way[0] * i, way[1] * i, 1.0, 0.0) for i in range(6)])


@pytest.mark.parametrize("draw", [clutter, document])
@pytest.mark.parametrize("rate", [1.03, 0.97, 1.005])
def test_a_zoom(rate: float, draw: type[clutter]) -> None:  # type: ignore[valid-type]
    track(draw(2), [(0.0, 0.0, 1.2 * rate**i, 0.0) for i in range(6)])


@pytest.mark.parametrize("draw", [clutter, document])
@pytest.mark.parametrize("angle_deg", [0.5, 2.0])
def test_a_turn(angle_deg: float, draw: type[clutter]) -> None:  # type: ignore[valid-type]
    track(draw(3), [(0.0, 0.0, 1.2, angle_deg * i) for i in range(6)])


@pytest.mark.parametrize("pose", [(8.0, 3.0, 1.0, 0.0), (0.0, 0.0, 1.02, 0.0), (0.0, 0.0, 1.0, 1.5)])
def test_the_camera_over_a_plain_wall(pose: Pose) -> None:
    """Only the picture on it shows how the camera moves."""
    right, down, rate, angle_deg = pose
    poses = [(right * i, down * i, 1.1 * rate**i, angle_deg * i) for i in range(6)]
    track(wall_with_picture(4), poses)


@pytest.mark.parametrize("speed_px", [2, 8, 24])
def test_something_moves_over_a_still_ground(speed_px: int) -> None:
    ground, thing = film(clutter(5), (0.0, 0.0, 1.0, 0.0)), clutter(6, 160, 160)
    pictures = []
    for index in range(6):
        pictures.append(ground.copy())
        left = 100 + speed_px * index
        pictures[-1][128:288, left : left + 160] = thing
    for index, update in enumerate(updates(pictures)[1:], 1):
        assert update.motion is not None
        left = 100 + speed_px * index
        interior = slice(5, 8), slice(left // 32 + 1, (left + 160) // 32)
        assert update.motion.dx_px[interior] == pytest.approx(speed_px, abs=2)
        assert update.motion.dy_px[interior] == pytest.approx(0, abs=2)
        assert update.motion.confidence[interior].min() > 0.5
        outside = np.ones((ROWS, COLS), bool)
        outside[3:10, (left - speed_px) // 32 - 1 : (left + 160) // 32 + 2] = False
        assert not update.motion.magnitude_px[outside].any()
        assert (update.motion.confidence[outside] == 1).all()


def test_a_still_picture_does_not_move() -> None:
    rng, picture = np.random.default_rng(7), film(clutter(7), (0.0, 0.0, 1.0, 0.0))
    noisy = [np.clip(picture + rng.normal(0, 2, picture.shape), 0, 255).astype(np.uint8) for _ in range(3)]
    assert all(update.motion is None for update in updates([picture, picture, *noisy]))


def test_light_noise_and_new_things_do_not_move_the_picture() -> None:
    rng, picture = np.random.default_rng(8), film(clutter(8), (0.0, 0.0, 1.0, 0.0))
    darker = (picture * 0.7).astype(np.uint8)
    noisy = np.clip(picture + rng.normal(0, 12, picture.shape), 0, 255).astype(np.uint8)
    window = picture.copy()
    window[100:300, 200:500] = clutter(9, 200, 300)
    for other in (darker, noisy, window):
        motion = updates([picture, other], TextureOptions(cuts=False))[1].motion
        if motion is not None:
            assert np.median(motion.magnitude_px) < 1
            assert ((motion.magnitude_px > 4) & (motion.confidence > 0.5)).mean() < 0.02


def test_unrelated_pictures_give_no_confidence() -> None:
    pictures = [film(clutter(seed), (0.0, 0.0, 1.0, 0.0)) for seed in (10, 11)]
    motion = updates(pictures, TextureOptions(cuts=False))[1].motion
    assert motion is None or motion.confidence.mean() < 0.3


def test_a_cut_and_a_discontinuity_have_no_motion() -> None:
    pictures = [film(clutter(seed), (0.0, 0.0, 1.0, 0.0)) for seed in (12, 13)]
    assert [update.motion for update in updates(pictures)] == [None, None]
    updater, view = TextureUpdater(), film(clutter(12), (6.0, 0.0, 1.0, 0.0))
    updater.process(planes(pictures[0]), FrameStamp(0, 0, 0))
    assert updater.process(planes(view), FrameStamp(1, 0, 0), "seek").motion is None
    back = updater.process(planes(pictures[0]), FrameStamp(2, 0, 0)).motion
    assert back is not None
    assert np.median(back.dx_px) == pytest.approx(6, abs=0.5)


def test_it_can_be_switched_off() -> None:
    pictures = [film(clutter(14), (6.0 * i, 0.0, 1.0, 0.0)) for i in range(2)]
    assert updates(pictures, TextureOptions(motion=False))[1].motion is None


@pytest.mark.parametrize("size", [(1, 1), (20, 700), (33, 65), (1081, 1919), (64, 4000)])
def test_frames_of_any_size(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(15)
    height, width = size
    small = rng.integers(0, 256, (height // 8 + 1, width // 8 + 3), dtype=np.uint8)
    wide = cv2.resize(small, (width + 16, height), interpolation=cv2.INTER_NEAREST)
    grid = TileGrid.of(height, width)
    estimator = ReferenceMotion(grid, "gray")
    frames = [FramePlanes("gray", (np.ascontiguousarray(wide[:, x : x + width]),)) for x in (0, 8)]
    estimate = estimator.estimate(frames[0], frames[1], np.ones(grid.shape, bool))
    if min(size) > 60:
        assert estimate.motion is not None
        assert np.median(estimate.motion.dx_px) == pytest.approx(-8, abs=1)
    elif estimate.motion is not None:
        assert estimate.motion.dx_px.shape == grid.shape


def test_colours_and_planes_move_alike() -> None:
    pictures = [film(clutter(16), (5.0 * i, 0.0, 1.0, 0.0)) for i in range(3)]
    half = np.full((HEIGHT // 2, WIDTH // 2), 128, np.uint8)
    for make in (
        lambda luma: FramePlanes("yuv", (luma, half, half)),
        lambda luma: FramePlanes("rgb", (np.repeat(luma[..., None], 3, axis=2),)),
    ):
        updater = TextureUpdater()
        motions = [updater.process(make(luma), FrameStamp(i, 0, 0)).motion for i, luma in enumerate(pictures)]
        assert motions[2] is not None
        assert np.median(motions[2].dx_px) == pytest.approx(-5, abs=0.5)


def test_another_layout_of_the_same_size() -> None:
    updater, half = TextureUpdater(), np.full((HEIGHT // 2, WIDTH // 2), 128, np.uint8)
    for index in range(6):
        luma = film(clutter(19), (5.0 * index, 0.0, 1.0, 0.0))
        layout = ("yuv", (luma, half, half)) if index < 3 else ("rgb", (np.repeat(luma[..., None], 3, axis=2),))
        update = updater.process(FramePlanes(*layout), FrameStamp(index, 0, 0))  # type: ignore[arg-type]
        if index in (0, 3):
            assert update.motion is None
        else:
            assert update.motion is not None
            assert np.median(update.motion.dx_px) == pytest.approx(-5, abs=0.5)


def test_the_same_frames_give_the_same_motion() -> None:
    pictures = [film(document(17), (3.0 * i, 2.0 * i, 1.0 + 0.01 * i, 0.3 * i)) for i in range(4)]
    for first, second in zip(updates(pictures), updates(pictures), strict=True):
        assert (first.motion is None) == (second.motion is None)
        if first.motion is not None and second.motion is not None:
            assert (first.motion.dx_px == second.motion.dx_px).all()
            assert (first.motion.confidence == second.motion.confidence).all()


def test_the_camera_is_what_most_tiles_agree_on() -> None:
    down, right = np.mgrid[0:ROWS, 0:COLS].astype(np.float32)
    dy, dx = 0.5 * down - 0.2 * right + 3, 0.2 * down + 0.5 * right - 4
    trust = np.ones((ROWS, COLS), np.float32)
    dy[2:7, 3:9] += 30
    camera = fit_camera(dy, dx, trust)
    assert camera is not None
    motion = np.array(camera.over(ROWS, COLS))
    background = np.ones((ROWS, COLS), bool)
    background[2:7, 3:9] = False
    assert motion[0][background] == pytest.approx(dy[background], abs=0.1)
    assert motion[1][background] == pytest.approx(dx[background], abs=0.1)
    assert camera.support == pytest.approx(background.mean(), abs=0.01)


def test_tiles_without_agreement_are_no_camera() -> None:
    rng = np.random.default_rng(18)
    scattered = rng.uniform(-60, 60, (2, ROWS, COLS)).astype(np.float32)
    assert fit_camera(*scattered, np.ones((ROWS, COLS), np.float32)) is None
    few = np.zeros((ROWS, COLS), np.float32)
    few[0, :3] = 1
    assert fit_camera(*scattered, few) is None
