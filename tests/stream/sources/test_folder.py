"""Folders of pictures: order, pace, orientation, skipped files, and messages for folders without pictures."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from stream.config import MAX_PIXELS, CaptureConfig
from stream.errors import SourceError, SourceNotFound
from stream.sources import Source, SourceFrame
from stream.sources.checks import natural_order
from stream.sources.factory import open_source
from stream.sources.folder import PictureError, read_picture
from tests.support.clock import FakeClock

MS = 1_000_000


def grey(value: int, width: int = 40, height: int = 24) -> Image.Image:
    return Image.fromarray(np.full((height, width, 3), value, np.uint8))


def opened(address: str | Path, **capture: object) -> Source:
    return open_source(str(address), CaptureConfig.model_validate(capture), FakeClock(7))


def read(address: str | Path, **capture: object) -> list[SourceFrame]:
    with opened(address, **capture) as source:
        return [frame for frame in source.frames() if isinstance(frame, SourceFrame)]


def shades(frames: list[SourceFrame]) -> list[int]:
    return [int(frame.planes.planes[0][0, 0, 0]) for frame in frames]


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Pictures 1 to 12 of every kind, named without leading zeros, among other files."""
    folder = tmp_path / "shots"
    folder.mkdir()
    kinds = ["png", "bmp", "tif", "PNG", "tiff", "png"] * 2
    for number, kind in enumerate(kinds, 1):
        grey(number * 10).save(folder / f"img{number}.{kind}")
    (folder / "notes.txt").write_text("no picture", encoding="utf-8")
    (folder / "._img1.png").write_bytes(b"a Mac's shadow file")
    (folder / "old.png").mkdir()
    return folder


def test_pictures_come_in_natural_order(shots: Path) -> None:
    frames = read(shots)
    assert shades(frames) == [number * 10 for number in range(1, 13)]
    assert [frame.frame_index for frame in frames] == list(range(12))
    assert [frame.media_ns for frame in frames] == [place * 40 * MS for place in range(12)]
    assert {frame.capture_ns for frame in frames} == {7}
    assert [frame.discontinuity for frame in frames] == ["start", *[None] * 11]
    assert not any(frame.skipped for frame in frames)


def test_natural_order() -> None:
    names = ["b1.png", "IMG10.png", "img9.png", "1.png", "img1-10.png", "img1-9.png", "img1.png", "²img.png"]
    ordered = sorted(map(Path, names), key=natural_order)
    assert [path.name for path in ordered] == [
        "1.png", "b1.png", "img1-9.png", "img1-10.png", "img1.png", "img9.png", "IMG10.png", "²img.png",
    ]  # fmt: skip


def test_the_pace_is_asked_for(shots: Path) -> None:
    with opened(shots, fps=12.5, max_frames=3) as source:
        info = source.describe()
        assert [frame.media_ns for frame in source.frames()] == [0, 80 * MS, 160 * MS]
        assert source.trailing_skipped() == ()
        assert source.repaired_pts() == (0, 0)
    assert (info.fps, info.frames, info.duration_ns) == (12.5, 12, 960 * MS)
    assert (info.name, info.codec, info.width_px, info.height_px, info.live) == (str(shots), "png", 40, 24, False)


def test_it_begins_at_the_start_time(shots: Path) -> None:
    frames = read(shots, start_s=0.07)
    assert shades(frames) == [number * 10 for number in range(3, 13)]
    assert [frame.media_ns // MS for frame in frames[:2]] == [80, 120]
    assert [frame.frame_index for frame in frames[:2]] == [0, 1]
    assert len(read(shots, start_s=0.44)) == 1
    match = r"has no frame from 0\.45 s on \(its length is 0\.48 s\); give an earlier --start"
    with pytest.raises(SourceError, match=match):
        opened(shots, start_s=0.45)


def test_a_pattern_names_some_of_them(shots: Path) -> None:
    assert shades(read(shots / "img1*.*")) == [10, 100, 110, 120]
    assert shades(read(f"{shots}/../**/img[23].*")) == [20, 30]
    assert {frame.planes.planes[0].shape for frame in read(shots / "img1*.*", size="96x64")} == {(64, 96, 3)}


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    grey(90).save(tmp_path / "a[1].png")
    frames = read(tmp_path / "a[1].png")
    assert len(frames) == 1
    assert frames[0].discontinuity == "start"


def test_unreadable_pictures_are_skipped_and_named(shots: Path) -> None:
    for number in (3, 5, 12):
        damaged = next(shots.glob(f"img{number}.*"))
        damaged.write_bytes(damaged.read_bytes()[:60])
    (shots / "img8.bmp").write_bytes(b"")
    with opened(shots) as source:
        frames = list(source.frames())
        trailing = source.trailing_skipped()
    assert shades(frames) == [10, 20, 40, 60, 70, 90, 100, 110]  # type: ignore[arg-type]
    assert [frame.media_ns // (40 * MS) for frame in frames] == [0, 1, 3, 5, 6, 8, 9, 10]
    reported = [item for frame in frames for item in frame.skipped]  # type: ignore[union-attr]
    assert [Path(item.what).name for item in reported] == ["img3.tif", "img5.tiff", "img8.bmp"]
    assert all(item.reason for item in reported)
    assert [item.media_ns for item in reported] == [80 * MS, 160 * MS, 280 * MS]
    assert [Path(item.what).name for item in trailing] == ["img12.png"]


def test_many_in_a_row_are_reported_as_one(tmp_path: Path) -> None:
    for number in range(1, 21):
        (tmp_path / f"{number}.png").write_bytes(b"none")
    grey(1).save(tmp_path / "21.png")
    (frame,) = read(tmp_path)
    (item,) = frame.skipped
    assert item.what == f"{tmp_path / '1.png'} to {tmp_path / '20.png'}"
    assert (item.count, item.media_ns, item.reason) == (20, 0, "it is not a picture of a known kind")
    assert frame.discontinuity == "start"


def test_another_size_is_a_discontinuity(tmp_path: Path) -> None:
    for number, width in enumerate((40, 40, 64, 64, 40)):
        grey(9, width).save(tmp_path / f"{number}.png")
    frames = read(tmp_path)
    assert [frame.discontinuity for frame in frames] == ["start", None, "resolution", None, "resolution"]
    assert {frame.duration_ns for frame in frames} == {40_000_000}


def test_it_ends_when_asked(tmp_path: Path) -> None:
    for number in range(6):
        grey(number).save(tmp_path / f"{number}.png")
    with opened(tmp_path) as source:
        calls: list[int] = []
        assert len(list(source.frames(lambda: bool(calls.append(1) or len(calls) > 2)))) == 3
        assert source.trailing_skipped() == ()


class TestPicture:
    """The picture as a viewer shows it."""

    def quarters(self) -> npt.NDArray[np.uint8]:
        """Picture of red, green over blue, white, so that its corners differ."""
        image = np.zeros((16, 24, 3), np.uint8)
        image[:8, :12], image[:8, 12:], image[8:, :12], image[8:, 12:] = (255, 0, 0), (0, 255, 0), (0, 0, 255), 255
        return image

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_every_orientation_is_turned_upright(self, tmp_path: Path, orientation: int) -> None:
        upright = self.quarters()
        undo = {
            1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.transpose(1, 0, 2),
            6: np.rot90(upright, 1), 7: np.rot90(upright, 2).transpose(1, 0, 2), 8: np.rot90(upright, -1),
        }  # fmt: skip
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / "turned.jpg"
        Image.fromarray(np.ascontiguousarray(undo[orientation])).save(path, exif=exif, quality=100, subsampling=0)
        assert np.abs(read_picture(path, MAX_PIXELS)[0].astype(int) - upright).max() < 12

    @pytest.mark.parametrize("suffix", ["png", "webp", "tif", "gif"])
    def test_transparency_shows_white(self, tmp_path: Path, suffix: str) -> None:
        rgba = np.zeros((16, 16, 4), np.uint8)
        rgba[..., 0], rgba[:8, :, 3] = 200, 255
        path = tmp_path / f"clear.{suffix}"
        Image.fromarray(rgba).save(path, lossless=True)
        picture = read_picture(path, MAX_PIXELS)[0]
        assert np.abs(picture[2, 2].astype(int) - (200, 0, 0)).max() <= 8
        assert (picture[12, 2] == 255).all()

    def test_half_transparent_is_half_white(self, tmp_path: Path) -> None:
        Image.fromarray(np.full((4, 4, 4), (100, 0, 0, 128), np.uint8)).save(tmp_path / "half.png")
        assert np.abs(read_picture(tmp_path / "half.png", MAX_PIXELS)[0][0, 0].astype(int) - (177, 127, 127)).max() <= 1

    def test_a_transparent_colour_of_a_palette_shows_white(self, tmp_path: Path) -> None:
        image = Image.fromarray(self.quarters()).convert("P", palette=Image.Palette.ADAPTIVE, colors=4)
        image.save(tmp_path / "p.png", transparency=image.getpixel((0, 0)))
        picture = read_picture(tmp_path / "p.png", MAX_PIXELS)[0]
        assert (picture[0, 0] == 255).all()
        assert (picture[0, -1] == (0, 255, 0)).all()

    def test_an_animation_shows_its_first_picture(self, tmp_path: Path) -> None:
        grey(30).save(tmp_path / "a.gif", save_all=True, append_images=[grey(200)])
        assert read_picture(tmp_path / "a.gif", MAX_PIXELS)[0][0, 0, 0] == 30

    @pytest.mark.parametrize(("value", "expected"), [(0, 0), (32_896, 128), (65_535, 255)])
    def test_sixteen_bits_become_eight(self, tmp_path: Path, value: int, expected: int) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(np.full((4, 8), value, np.uint16)).save(tmp_path / "deep.png", exif=exif)
        picture = read_picture(tmp_path / "deep.png", MAX_PIXELS)[0]
        assert picture.shape == (8, 4, 3)
        assert (picture == expected).all()

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK"])
    def test_every_mode_becomes_rgb(self, tmp_path: Path, mode: str) -> None:
        path = tmp_path / f"a.{'jpg' if mode == 'CMYK' else 'png'}"
        grey(255).convert(mode).save(path)
        assert read_picture(path, MAX_PIXELS)[0].mean() > 250

    def test_a_truncated_or_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(PictureError, match="No such file"):
            read_picture(tmp_path / "absent.png", MAX_PIXELS)[0]
        path = tmp_path / "cut.jpg"
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[:-900])
        with pytest.raises(PictureError, match="truncated"):
            read_picture(path, MAX_PIXELS)

    @pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "tif", "gif"])
    def test_damage_never_raises_anything_else(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"a.{suffix}"
        Image.fromarray(np.random.default_rng(1).integers(0, 256, (16, 16, 3), np.uint8)).save(path)
        good, random = path.read_bytes(), np.random.default_rng(2)
        refused = 0
        for _ in range(60):
            data = bytearray(good)
            for place in random.integers(0, len(data), 4):
                data[place] = random.integers(0, 256)
            path.write_bytes(data[: random.integers(1, len(data))] if random.random() < 0.3 else data)
            try:
                read_picture(path, MAX_PIXELS)
            except PictureError:
                refused += 1
        assert refused > 0


class TestWhereThereAreNone:
    def fails(self, address: str | Path, kind: type[Exception], pattern: str) -> None:
        with pytest.raises(kind, match=pattern):
            opened(address)

    @pytest.mark.parametrize(
        ("files", "pattern", "kind", "message"),
        [
            ((), "", SourceError, r"is an empty folder; put pictures there \(png, jpg"),
            (
                ("c.MP4", "a.mkv", "b.webm", "d.ts"), "", SourceError,
                r"holds videos and no pictures; give one of them: .*a\.mkv, .*c\.MP4, \.\.\.$",
            ),
            (("a.txt",), "", SourceError, r"no picture is in .*; pictures are png, jpg"),
            ((), "*.png", SourceNotFound, r"no file matches .*\*\.png; check the pattern"),
            (("a.txt",), "*.txt", SourceError, r"no picture is in what .*\*\.txt names"),
            (
                ("a.png",), "", SourceError,
                r"no picture of .* can be read \(.*a\.png: it is not a picture of a known kind\)",
            ),
        ],
    )  # fmt: skip
    def test_none_can_be_read(
        self, tmp_path: Path, files: tuple[str, ...], pattern: str, kind: type[Exception], message: str
    ) -> None:
        for name in files:
            (tmp_path / name).write_bytes(b"none")
        self.fails(tmp_path / pattern, kind, message)

    def test_a_folder_that_may_not_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a stand-in, because the tests may run as root, who may read everything."""

        monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError(13, "Permission denied")))
        self.fails(tmp_path, SourceError, "cannot be read: Permission denied; change its permissions")
