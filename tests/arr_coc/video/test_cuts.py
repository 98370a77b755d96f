"""Scene cuts on drawn pictures: what is one, and what only looks like one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.types import Colour, FramePlanes, FrameStamp
from arr_coc.video.cuts import CutVerdict
from arr_coc.video.texture_updater import TextureUpdater
from stream.scenes import load_scene
from stream.sources.planes import planes_of

HEIGHT, WIDTH = 192, 320

Picture = npt.NDArray[np.uint8]


def picture(seed: int, width: int = WIDTH, low: int = 20, high: int = 235) -> Picture:
    """A cluttered scene: rectangles and discs of many sizes and grays on a smooth ground; uint8 [HEIGHT, width]."""
    rng = np.random.default_rng(seed)
    ground = cv2.resize(rng.integers(low, high, (6, max(2, width // 40)), dtype=np.uint8), (width, HEIGHT))
    for _ in range(width // 8):
        centre = (int(rng.integers(width)), int(rng.integers(HEIGHT)))
        side = int(rng.integers(6, 40))
        shade = int(rng.integers(low, high))
        if rng.random() < 0.5:
            cv2.circle(ground, centre, side, shade, -1)
        else:
            cv2.rectangle(ground, centre, (centre[0] + side, centre[1] + 2 * side), shade, -1)
    return ground


def frame(luma: Picture) -> FramePlanes:
    """Gray pictures with chroma that follows luma a little, as 4:2:0."""
    half = cv2.resize(luma, (luma.shape[1] // 2, luma.shape[0] // 2), interpolation=cv2.INTER_AREA)
    return FramePlanes("yuv", (luma, 112 + half // 8, 144 - half // 8), Colour("bt709"))


def lit(luma: Picture, gain: float, offset: float = 0.0) -> Picture:
    return np.clip(luma * gain + offset, 0, 255).astype(np.uint8)


def verdicts(pictures: Iterable[Picture]) -> list[CutVerdict]:
    updater = TextureUpdater()
    return [updater.process(frame(luma), FrameStamp(i, 0, 0)).cut for i, luma in enumerate(pictures)]


def cuts(pictures: Iterable[Picture]) -> list[int]:
    return [index for index, verdict in enumerate(verdicts(pictures)) if verdict.is_cut]


SCENE, OTHER = picture(1), picture(2)
STILL = [SCENE] * 4


def test_a_cut_is_found_on_its_first_frame() -> None:
    results = verdicts([*STILL, *[OTHER] * 4, *[picture(3)] * 4])
    assert [index for index, verdict in enumerate(results) if verdict.is_cut] == [4, 8]
    assert results[4].score > 0.5
    assert results[4].dirty_share > 0.9
    assert results[5].score == 0


def test_a_cut_between_shots_with_the_same_histogram() -> None:
    mirrored = np.ascontiguousarray(SCENE[::-1, ::-1])
    results = verdicts([*STILL, mirrored, mirrored])
    assert results[4].is_cut


def test_cuts_between_many_unrelated_pictures() -> None:
    pictures = [picture(seed) for seed in range(10, 30)]
    video = [shot for shot in pictures for _ in range(3)]
    assert cuts(video) == list(range(3, 60, 3))


def test_a_cut_between_letterboxed_shots() -> None:
    pictures = []
    for shot in (SCENE, OTHER, picture(3), picture(4)):
        letterboxed = np.full_like(shot, 16)
        letterboxed[26:-26] = shot[26:-26]
        pictures += [letterboxed] * 3
    assert cuts(pictures) == [3, 6, 9]


def test_a_cut_in_the_middle_of_a_pan() -> None:
    first, second = picture(7, width=2 * WIDTH), picture(9, width=2 * WIDTH)
    pan = [wide[:, x : x + WIDTH] for wide in (first, second) for x in range(0, 96, 16)]
    assert cuts(pan) == [6]


def test_a_cut_between_dim_shots() -> None:
    assert cuts([picture(1, high=70)] * 3 + [picture(2, high=70)] * 3) == [3]


@pytest.mark.parametrize("frames", [1, 2, 3])
@pytest.mark.parametrize("gain", [1.0, 1.6])
def test_a_flash_is_no_cut(gain: float, frames: int) -> None:
    for offset in (90.0, 255.0):
        flash = [lit(SCENE, gain, offset)] * frames
        assert cuts([*STILL, *flash, *STILL]) == []


def test_a_picture_that_comes_back_after_a_black_frame_is_no_cut() -> None:
    assert cuts([*STILL, np.full_like(SCENE, 16), *STILL]) == []


def test_a_cut_through_a_black_frame() -> None:
    assert cuts([*STILL, np.full_like(SCENE, 16), OTHER, OTHER]) == [5]


@pytest.mark.parametrize("gain", [0.5, 0.75, 1.4])
def test_an_exposure_step_is_no_cut(gain: float) -> None:
    assert cuts([*STILL, *[lit(SCENE, gain)] * 4]) == []


def test_an_exposure_step_while_a_vehicle_passes_is_no_cut() -> None:
    pictures = []
    for index in range(12):
        luma = lit(picture(5, low=90, high=110), 1.0 - 0.05 * index)
        cv2.rectangle(luma, (20 * index, 60), (20 * index + 70, 120), 250, -1)
        pictures.append(luma)
    assert cuts(pictures) == []


def test_fades_and_dissolves_are_no_cuts() -> None:
    steps = np.linspace(0, 1, 12)
    fade = [lit(SCENE, share, 16 * (1 - share)) for share in steps]
    dissolve = [lit(SCENE * (1 - share) + OTHER * share, 1.0) for share in steps]
    assert cuts([*fade, *STILL, *dissolve]) == []


def test_a_title_over_a_shot_is_no_cut() -> None:
    titled = lit(SCENE, 0.6)
    cv2.putText(titled, "ACT ONE", (20, 120), cv2.FONT_HERSHEY_DUPLEX, 2, 255, 4)
    assert cuts([*STILL, *[titled] * 4, *STILL]) == []


def test_a_window_that_opens_is_no_cut() -> None:
    opened = SCENE.copy()
    opened[30:120, 40:200] = OTHER[30:120, 40:200]
    assert cuts([*STILL, opened, opened]) == []


@pytest.mark.parametrize("speed_px", [2, 8, 24])
def test_a_pan_is_no_cut(speed_px: int) -> None:
    wide = picture(7, width=WIDTH + 12 * speed_px)
    assert cuts(wide[:, x : x + WIDTH] for x in range(0, 12 * speed_px, speed_px)) == []


def test_a_whip_pan_is_no_cut() -> None:
    wide = picture(8, width=2200)
    pictures, x = [wide[:, :WIDTH]] * 3, 0
    for speed_px in (10, 40, 90, 140, 160, 160, 160, 140, 90, 40, 10, 0):
        x += speed_px
        blurred = cv2.blur(wide, (max(1, speed_px), 1))
        pictures.append(np.ascontiguousarray(blurred[:, x : x + WIDTH]))
    assert cuts(pictures) == []


def test_a_picture_that_is_flat_but_for_its_corners_is_no_cut() -> None:
    pictures = []
    for shade in (40, 200, 40):
        pictures.append(np.full_like(SCENE, shade))
        pictures[-1][:10, :12] = pictures[-1][-10:, -12:] = 255
    assert cuts(pictures) == []


def test_noise_is_no_cut() -> None:
    rng = np.random.default_rng(0)
    assert cuts(lit(SCENE + rng.normal(0, 8, SCENE.shape), 1.0) for _ in range(6)) == []
    assert cuts(lit(np.full_like(SCENE, 16) + rng.normal(0, 6, SCENE.shape), 1.0) for _ in range(6)) == []


def fine(seed: int, width: int = WIDTH, sigma: float = 0.0, height: int = HEIGHT) -> Picture:
    """Random texture of single pixels, or of a few: uint8 [height, width]."""
    noise = np.random.default_rng(seed).normal(0, 1, (height, width)).astype(np.float32)
    noise = cv2.GaussianBlur(noise, (0, 0), sigma) if sigma else noise
    return np.clip(128 + 45 * noise / noise.std(), 0, 255).astype(np.uint8)


def filmed(wide: Picture, poses: Iterable[tuple[float, float, float, float]]) -> list[Picture]:
    """A camera's view of a picture from its middle, moved by (x, y), with a zoom and an angle in degrees."""
    rows, cols = wide.shape
    views = []
    for x, y, zoom, angle in poses:
        matrix = cv2.getRotationMatrix2D((cols / 2 + x, rows / 2 + y), angle, zoom)
        matrix[:, 2] += WIDTH / 2 - cols / 2 - x, HEIGHT / 2 - rows / 2 - y
        views.append(cv2.warpAffine(wide, matrix, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT_101))
    return [np.asarray(picture, np.uint8) for picture in views]


@pytest.mark.parametrize("seed", [21, 22])
@pytest.mark.parametrize("sigma", [0.0, 2.0])
@pytest.mark.parametrize("speed_px", [3, 8, 20])
def test_a_pan_over_fine_random_texture_is_no_cut(speed_px: int, sigma: float, seed: int) -> None:
    wide = fine(seed, 640 + 20 * speed_px, sigma, height=384)
    assert cuts(wide[:, x : x + 640] for x in range(0, 20 * speed_px, speed_px)) == []


@pytest.mark.parametrize("seed", [23, 24])
def test_a_pan_over_fine_texture_in_colours_is_no_cut(seed: int) -> None:
    """Hue and luma change in every texel; only the camera's motion explains it."""
    updater, noise = TextureUpdater(), np.random.default_rng(seed).normal(0, 1, (384, 800, 3)).astype(np.float32)
    noise = cv2.GaussianBlur(noise, (0, 0), 2.0)
    wide = np.clip(128 + 50 * noise / noise.std(), 0, 255).astype(np.uint8)
    for index in range(20):
        view = np.ascontiguousarray(wide[:, 8 * index : 8 * index + 640])
        assert not updater.process(FramePlanes("rgb", (view,)), FrameStamp(index, 0, 0)).cut.is_cut


@pytest.mark.parametrize("seed", [31, 32])
@pytest.mark.parametrize("rate", [0.93, 1.04, 1.1])
def test_a_zoom_is_no_cut(rate: float, seed: int) -> None:
    start = 1.0 if rate > 1 else 3.0
    for wide in (picture(seed, 2 * WIDTH), fine(seed, 2 * WIDTH, 1.0)):
        assert cuts(filmed(wide, ((0, 0, start * rate**index, 0) for index in range(20)))) == []


@pytest.mark.parametrize("seed", [41, 42])
def test_a_turn_and_a_shake_are_no_cuts(seed: int) -> None:
    wide = picture(seed, 2 * WIDTH)
    assert cuts(filmed(wide, ((0, 0, 1.3, 4 * index) for index in range(20)))) == []
    jolts = np.random.default_rng(seed).normal(0, 12, (20, 2))
    assert cuts(filmed(wide, ((float(x), float(y), 1.3, 0) for x, y in jolts))) == []


def transition(kind: str, first: Picture, second: Picture, frames: int) -> list[Picture]:
    """One picture becomes another by degrees."""
    turns = cv2.resize(np.random.default_rng(5).random((6, 10)), (WIDTH, HEIGHT), interpolation=cv2.INTER_NEAREST)
    across = np.tile(np.linspace(0, 1, WIDTH), (HEIGHT, 1))
    pictures = []
    for share in np.linspace(0, 1, frames + 2)[1:-1]:
        if kind == "slide":
            at = round(WIDTH * float(share * share * (3 - 2 * share)))
            pictures.append(np.ascontiguousarray(np.concatenate([first, second], axis=1)[:, at : at + WIDTH]))
        else:
            order = {"wipe": across, "squares": turns}[kind]
            pictures.append(np.where(order < share, second, first))
    return pictures


@pytest.mark.parametrize("seed", [51, 61])
@pytest.mark.parametrize("kind", ["slide", "wipe", "squares"])
def test_a_transition_right_after_a_cut_is_not_cut_again(kind: str, seed: int) -> None:
    """Neither while it runs nor when it is over."""
    first, second, third = (picture(seed + index) for index in range(3))
    assert cuts([first] * 4 + [second] * 2 + transition(kind, second, third, 9) + [third] * 5) == [4]


@pytest.mark.parametrize("seed", [71, 72])
def test_something_large_that_passes_fast_is_no_cut(seed: int) -> None:
    background, other = picture(seed), picture(seed + 10)
    frames = []
    for index in range(14):
        frames.append(background.copy())
        left, right = np.clip((70 * index - 240, 70 * index), 0, WIDTH)
        frames[-1][20:180, left:right] = other[20:180, left:right]
    assert cuts(frames) == []


def test_a_title_that_dimmed_a_flat_picture_goes_without_a_cut() -> None:
    flat = np.full((HEIGHT, WIDTH), 90, np.uint8)
    cv2.fillConvexPoly(flat, np.array([(20, 20), (150, 60), (60, 170)], np.int32), 200)
    cv2.rectangle(flat, (200, 90), (300, 180), 40, -1)
    titled = lit(flat, 0.35)
    cv2.putText(titled, "ACT ONE", (20, 120), cv2.FONT_HERSHEY_DUPLEX, 2, 255, 4)
    assert cuts([flat] * 4 + [titled] * 14 + [flat] * 4) == []


def test_cuts_that_follow_soon_are_found_from_the_third_frame_on() -> None:
    """A shot of one or two frames counts as part of what cut to it: frames of a transition look the same."""
    for distance, expected in ((2, [3]), (3, [3, 6]), (6, [3, 9])):
        assert cuts([picture(81)] * 3 + [picture(82)] * distance + [picture(83)] * 6) == expected


def test_a_discontinuity_forgets_what_was_seen() -> None:
    """Right after a cut, the shot before it would be known again."""
    shots = [SCENE, OTHER, OTHER, OTHER, picture(3), SCENE]
    quiet: list[str | None] = ["start", "cut", None, None]
    for discontinuity, reasons in ((None, [*quiet, "cut", None]), ("seek", [*quiet, "seek", "cut"])):
        updater = TextureUpdater()
        updates = [
            updater.process(frame(shot), FrameStamp(i, 0, 0), discontinuity if i == 4 else None)
            for i, shot in enumerate(shots)
        ]
        assert [update.epoch_reason for update in updates] == reasons


def clip_cuts(path: Path, most_frames: int) -> list[int]:
    updater, cut_indices = TextureUpdater(), []
    with av.open(str(path)) as container:
        for index, video_frame in enumerate(islice(container.decode(video=0), most_frames)):
            if updater.process(planes_of(video_frame), FrameStamp(index, 0, 0)).cut.is_cut:
                cut_indices.append(index)
    return cut_indices


@pytest.mark.parametrize(
    ("name", "frames"),
    [
        *(("multistream_nasa.mp4", 325), ("static_cars_topdown.mp4", 377)),
        *(("handheld_figurine.mp4", 120), ("odd_resolution_change.h264", 96)),
    ],
)
def test_real_clips(clips: Path, name: str, frames: int) -> None:
    """A cut and a dissolve; an exposure that steps; a camera in the hand; another size in the same shot."""
    manifest = {clip["file"]: clip for clip in json.loads((clips / "manifest.json").read_text(encoding="utf-8"))}
    assert clip_cuts(clips / name, frames) == manifest[name]["hard_cut_first_frame"]


@pytest.mark.parametrize("name", ["demo", "cuts"])
def test_cuts_of_the_drawn_scenes(name: str) -> None:
    """Plain shots that hold a few things of the same shapes, in other places and colours."""
    scene, updater = load_scene(name), TextureUpdater()
    indices = sorted({index for cut in scene.cuts for index in range(cut - 6, cut + 6)})
    results = [(index, updater.process(scene.planes(index), FrameStamp(index, 0, 0)).cut) for index in indices]
    assert [index for index, verdict in results if verdict.is_cut] == list(scene.cuts)


def grains(seed: int, height: int, width: int, side_px: int) -> Picture:
    """Squares of random grey: uint8 [height, width]."""
    shades = np.random.default_rng(seed).integers(0, 256, (-(-height // side_px), -(-width // side_px)), dtype=np.uint8)
    return np.ascontiguousarray(np.kron(shades, np.ones((side_px, side_px), np.uint8))[:height, :width])


def gray_cuts(pictures: Iterable[Picture]) -> list[int]:
    updater = TextureUpdater()
    frames = (FramePlanes("gray", (np.ascontiguousarray(luma),)) for luma in pictures)
    return [i for i, planes in enumerate(frames) if updater.process(planes, FrameStamp(i, 0, 0)).cut.is_cut]


@pytest.mark.parametrize("side_px", [1, 2, 4])
@pytest.mark.parametrize("way_px", [(3, 3), (6, 6), (8, 0), (7, 5), (0, 23), (45, 40), (60, 0)])
def test_a_pan_over_grains_is_no_cut(way_px: tuple[int, int], side_px: int) -> None:
    """Moved by half a texel of a thumbnail, texture finer than a texel is hardly like itself."""
    down, across = way_px
    wide = grains(91, 360 + 10 * down, 640 + 10 * across, side_px)
    assert gray_cuts(wide[down * i : down * i + 360, across * i : across * i + 640] for i in range(10)) == []


@pytest.mark.parametrize("lead", [0, 4])
@pytest.mark.parametrize("side_px", [2, 3, 6])
@pytest.mark.parametrize(("rate", "angle_deg"), [(1.1, 0), (1.06, 0), (0.94, 0), (1.0, 4), (1.0, 1)])
def test_a_zoom_and_a_turn_over_grains_are_no_cuts(rate: float, angle_deg: float, side_px: int, lead: int) -> None:
    wide, start = grains(92, 480, 800, side_px), 1.0 if rate > 1 else 1.6
    poses = [(0.0, 0.0, start * rate**i, angle_deg * i) for i in range(8)]
    assert gray_cuts(filmed(wide, [poses[0]] * lead + poses)) == []


@pytest.mark.parametrize("side_px", [1, 2, 4, 8])
def test_a_cut_between_grains_is_found(side_px: int) -> None:
    """Between still shots, and from one pan to another one."""
    shots = [grains(seed, 360, 720, side_px) for seed in (93, 94)]
    assert gray_cuts(shot[:, 8 * i : 8 * i + 640] for shot in shots for i in range(6)) == [6]
    assert gray_cuts(shot[:, :640] for shot in shots for _ in range(4)) == [4]
