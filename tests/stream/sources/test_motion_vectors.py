"""Motion vectors of encoded clips: the codecs that have them, their places on the grid, and damaged vectors."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.types import TILE_PX, CodedMotion, FrameStamp, TileGrid
from arr_coc.video.texture_updater import TextureOptions, TextureUpdater
from stream.config import CaptureConfig
from stream.media import SourceFrame
from stream.sources.file import FileSource
from stream.sources.motion_vectors import DecodedVectors
from stream.sources.orientation import Orientation
from tests.support.camera_moves import HEIGHT, WIDTH, clutter, film
from tests.support.clock import FakeClock
from tests.support.garbage import collect_earlier
from tests.support.video import make_video

RIGHT_PX, DOWN_PX = 8, 4
INNER = slice(2, -2), slice(2, -2)
FIELDS = np.dtype(
    [("source", "<i4"), ("w", "u1"), ("h", "u1"), ("src_x", "<i2"), ("src_y", "<i2"), ("dst_x", "<i2"),
     ("dst_y", "<i2"), ("flags", "<u8"), ("motion_x", "<i4"), ("motion_y", "<i4"), ("motion_scale", "<u2")], align=True,
)  # fmt: skip


def panned(path: Path, codec: str, rotation: int = 0, **options: str) -> Path:
    """A clip whose content moves left and up, by whole pixels a frame."""
    wide = clutter(1)
    views = [film(wide, (RIGHT_PX * index, DOWN_PX * index, 1.0, 0.0)) for index in range(7)]
    pictures = [np.repeat(picture[..., None], 3, axis=2) for picture in views]
    return make_video(path, pictures, codec=codec, rotation=rotation, options=options)


def read(path: Path, **capture: object) -> list[SourceFrame]:
    with FileSource(path, CaptureConfig.model_validate(capture), FakeClock(7)) as source:
        return list(source.frames())


def motion(frame: SourceFrame) -> tuple[float, float] | None:
    """Return the median (down, right) of the inner tiles; None if the codec has no vectors."""
    planes = frame.planes
    result = None
    if planes.coded_motion is not None:
        result = planes.coded_motion.over(TileGrid.of(planes.height_px, planes.width_px))
    return None if result is None else (float(np.nanmedian(result[0][INNER])), float(np.nanmedian(result[1][INNER])))


@pytest.mark.parametrize(("codec", "name"), [("libx264", "a.mp4"), ("mpeg4", "a.mp4"), ("mpeg2video", "a.ts")])
def test_a_pan_has_its_motion_in_all_but_key_frames(codec: str, name: str, tmp_path: Path) -> None:
    frames = read(panned(tmp_path / name, codec, bf="0"))
    assert motion(frames[0]) is None
    motions = [vector for frame in frames[1:] if (vector := motion(frame)) is not None]
    assert len(motions) >= 5  # MPEG-2 codes the last frame of a file by itself
    assert motions == [pytest.approx((-DOWN_PX, -RIGHT_PX), abs=0.5)] * len(motions)


def test_frames_of_kind_b_have_motion_over_one_or_a_few_frames(tmp_path: Path) -> None:
    frames = read(panned(tmp_path / "b.mp4", "libx264", bf="2", **{"b-adapt": "0"}))
    for down, right in filter(None, (motion(frame) for frame in frames[1:])):
        assert min(abs(right / n + RIGHT_PX) + abs(down / n + DOWN_PX) for n in (1, 2, 3)) < 1


@pytest.mark.parametrize("codec", ["libx265", "libvpx-vp9"])
def test_codecs_whose_decoder_exports_none_have_none(codec: str, tmp_path: Path) -> None:
    frames = read(panned(tmp_path / "none.mkv", codec))
    assert [frame.planes.coded_motion for frame in frames] == [None] * len(frames)


def test_vectors_are_turned_and_scaled_with_the_picture(tmp_path: Path) -> None:
    half = read(panned(tmp_path / "small.mp4", "libx264", bf="0"), size=f"{WIDTH // 2}x{HEIGHT // 2}")
    assert motion(half[3]) == pytest.approx((-DOWN_PX / 2, -RIGHT_PX / 2), abs=0.3)
    turned = read(panned(tmp_path / "turned.mp4", "libx264", rotation=90, bf="0"))
    assert (turned[3].planes.height_px, turned[3].planes.width_px) == (WIDTH, HEIGHT)
    assert motion(turned[3]) == pytest.approx((RIGHT_PX, -DOWN_PX), abs=0.5)
    over = read(panned(tmp_path / "over.mp4", "libx264", rotation=180, bf="0"))
    assert motion(over[3]) == pytest.approx((DOWN_PX, RIGHT_PX), abs=0.5)


def test_an_unreferenced_frame_is_freed_at_once(tmp_path: Path) -> None:
    collect_earlier()
    clip = panned(tmp_path / "a.mp4", "libx264", bf="0")

    def alive() -> int:
        return sum(type(thing) is av.VideoFrame for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = alive()
        frames = read(clip)
        assert alive() >= before + len(frames)
        del frames
        assert alive() == before
    finally:
        gc.enable()


def test_vectors_of_a_real_clip_explain_it_as_well_as_a_search(clips: Path) -> None:
    frames = read(clips / "handheld_figurine.mp4", max_frames=16)
    assert sum(frame.planes.coded_motion is not None for frame in frames) >= 15
    left = [left_after_motion(frames, coded=coded) for coded in (True, False)]
    assert left[0] < 1.05 * left[1]


def left_after_motion(frames: list[SourceFrame], *, coded: bool) -> float:
    """Mean grey levels by which frames differ from the one before, moved tile by tile."""
    updater, left, before = TextureUpdater(TextureOptions("cpu", cuts=False)), [], None
    for frame in frames:
        planes = frame.planes if coded else replace(frame.planes, coded_motion=None)
        result = updater.process(planes, FrameStamp(frame.frame_index, frame.media_ns, 0)).motion
        luma = np.ascontiguousarray(planes.planes[0])
        if before is not None and result is not None:
            row, col = np.mgrid[0 : luma.shape[0], 0 : luma.shape[1]].astype(np.float32)
            tiles = tuple((at // TILE_PX).astype(int) for at in (row, col))
            down, right = result.dy_px[tiles], result.dx_px[tiles]
            prediction = cv2.remap(before, col - right, row - down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            left.append(float(cv2.absdiff(prediction, luma).mean()))
        before = luma
    assert len(left) == len(frames) - 1
    return float(np.mean(left))


@dataclass
class Vectors:
    """Exported vectors of a hostile file, which no encoder makes."""

    values: npt.NDArray[np.void]

    def to_ndarray(self) -> npt.NDArray[np.void]:
        return self.values


def decoded(
    *vectors: tuple[int, ...],
    times: int = 1,
    orientation: Orientation = Orientation(),  # noqa: B008
) -> CodedMotion:
    """Vectors (source, side, x, y, motion_x, motion_y, scale) of a frame of 64×64 pixels."""
    values = np.zeros(len(vectors), FIELDS)
    for row, (source, side, x, y, motion_x, motion_y, scale) in zip(values, vectors, strict=True):
        row["source"], row["w"], row["h"], row["dst_x"], row["dst_y"] = source, side, side, x, y
        row["motion_x"], row["motion_y"], row["motion_scale"] = motion_x, motion_y, scale
    exported = Vectors(np.tile(values, times))
    return DecodedVectors(exported, (64, 64), orientation, 64, 64)  # type: ignore[arg-type]


GRID = TileGrid.of(64, 64)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("turns", range(4))
def test_vectors_turn_and_mirror_with_the_picture(turns: int, mirrored: bool) -> None:
    """Only the top right tile moves: by 2 pixels up and 4 to the right."""
    orientation = Orientation(turns, mirrored)
    motion = decoded((-1, 32, 48, 16, -16, 8, 4), orientation=orientation).over(GRID)
    assert motion is not None
    place = orientation.upright(np.array([[0, 1], [0, 0]], np.uint8)).astype(bool)
    # the way that the picture's own texels go: a ramp's step down and across
    ramp = np.add.outer(-2.0 * np.arange(2), 4.0 * np.arange(2))
    expected = np.gradient(np.rot90(ramp[:, ::-1] if mirrored else ramp, turns))
    assert [part[place].item() for part in motion] == [part[0, 0] for part in expected]


def test_a_tile_takes_the_mean_by_area_and_needs_half_of_it() -> None:
    result = decoded((-1, 32, 16, 16, -16, 8, 4), (-1, 16, 40, 8, 40, 0, 4)).over(GRID)
    assert result is not None
    assert result[1].tolist()[0] == pytest.approx([4, np.nan], nan_ok=True)
    assert result[0].tolist()[0] == pytest.approx([-2, np.nan], nan_ok=True)
    assert np.isnan(result[0][1]).all()


def test_a_later_frame_counts_if_no_earlier_one_is_referred_to() -> None:
    result = decoded((-1, 32, 16, 16, -16, 0, 4), (1, 32, 16, 16, 80, 0, 4), (1, 32, 48, 16, 24, 0, 4)).over(GRID)
    assert result is not None
    assert result[1][0].tolist() == pytest.approx([4, 6])


def test_impossible_vectors_are_ignored() -> None:
    good = (-1, 32, 16, 16, -16, 8, 4)
    outside = [(-1, 32, x, y, 4, 4, 4) for x, y in ((-20, 5), (5, -20), (64, 5), (5, 3000), (-32768, 32767))]
    too_long = [(-1, 32, 48, 48, 4000, 0, 4), (-1, 32, 48, 16, 0, -(2**31), 1)]
    result = decoded(good, *outside, *too_long).over(GRID)
    assert result is not None
    assert result[1][0, 0] == 4
    assert np.isnan(result[1]).sum() == 3
    assert decoded(good, (-1, 32, 48, 16, 4, 4, 0)).over(GRID) is None
    assert decoded(good, times=2 * 64 * 64 // 16 + 1).over(GRID) is None
    assert decoded().over(GRID) is None
    assert decoded((-1, 0, 16, 16, 4, 4, 4)).over(GRID) is None
