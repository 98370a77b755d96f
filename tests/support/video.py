"""Small video, made in code: the input of tests that read files."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.stream import Disposition
from PIL import ExifTags
from PIL import Image as PictureFile

from arr_coc.texture.store.base import MemoryTexels, TextureView
from arr_coc.texture.store.raster import rgb_matrix
from arr_coc.types import LEVELS, TILE_PX, FramePlanes, FrameStamp, TileGrid, TileVersions
from stream.extensions.doctor.gpu.reference import SUBSAMPLINGS as SUBSAMPLINGS
from stream.extensions.doctor.gpu.reference import copy_planes as copy_planes
from stream.extensions.doctor.gpu.reference import random_planes as random_planes
from stream.extensions.doctor.gpu.reference import stamp as stamp
from stream.extensions.doctor.gpu.reference import with_tiles_of as with_tiles_of

Image = npt.NDArray[np.uint8]


def moving_square(count: int = 10, width_px: int = 64, height_px: int = 48) -> Iterator[Image]:
    """`count` frames of a red square that moves right over a grey-blue ground: uint8 RGB [H, W, 3]."""
    for index in range(count):
        image = np.full((height_px, width_px, 3), (70, 80, 110), dtype=np.uint8)
        left = 2 + index * 2
        image[height_px // 4 : height_px // 2, left : left + height_px // 4] = (200, 40, 30)
        yield image


def make_video(
    path: Path,
    frames: Iterable[Image],
    fps: Fraction | int = 25,
    *,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    pts: Sequence[int] | None = None,
    packet_pts: Sequence[int] | None = None,
    last_duration: int | None = None,
    rotation: int = 0,
    sample_aspect: Fraction | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Encodes RGB frames; the suffix of `path` chooses the container.

    `pts` gives each frame's time in units of 1 / fps. `packet_pts` rewrites the PTS of the encoded packets instead,
    which may then go backward, `last_duration` the duration of the last one; `packet_pts` needs a codec without frame
    reordering, such as mjpeg or ffv1.
    """
    with av.open(str(path), "w", options=container_options) as container:
        stream = None
        packets: list[av.Packet] = []
        for index, image in enumerate(frames):
            if stream is None:
                stream = container.add_stream(codec, rate=fps, options=options or {})
                stream.height, stream.width, stream.pix_fmt = image.shape[0], image.shape[1], pixel_format
                if sample_aspect is not None:
                    stream.codec_context.sample_aspect_ratio = sample_aspect
                if rotation:
                    stream.set_display_rotation(rotation)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = pts[index] if pts else index
            frame.time_base = 1 / Fraction(fps)
            packets += stream.encode(frame)
        assert stream is not None, "a video needs frames"
        packets += stream.encode(None)
        packets[-1].duration = last_duration or packets[-1].duration
        for index, packet in enumerate(packets):
            if packet_pts:
                packet.pts, packet.dts = packet_pts[index], index - len(packets)
            container.mux(packet)
    if codec == "libsvtav1":
        use_ordinary_scheduling()
    return path


def make_still_video(path: Path, levels: Sequence[int], frames_each: int, brightest: int = 256) -> Path:
    """A still picture of noise, but for one tile with each level for `frames_each` frames, at 10 frames a second."""
    background = np.random.default_rng(0).integers(0, brightest, (128, 192, 3), dtype=np.uint8)
    frames = []
    for level in levels:
        frame = background.copy()
        frame[32:64, 64:96] = level
        frames += [frame] * frames_each
    return make_video(path, frames, 10)


def use_ordinary_scheduling() -> None:
    """Give this process's threads the system's ordinary scheduling again: SVT-AV1 makes that of a process of root
    real-time, and each process that is started later, a browser for one, would inherit it and starve all others."""
    for task in Path("/proc/self/task").glob("*") if sys.platform == "linux" else ():
        with suppress(ProcessLookupError):
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))


def make_photo(path: Path, image: Image, orientation: int = 1) -> Path:
    """A picture with EXIF, as a phone writes it; the suffix of `path` chooses the format."""
    exif = PictureFile.Exif()
    exif[ExifTags.Base.Make], exif[ExifTags.Base.Orientation] = "Phone", orientation
    PictureFile.fromarray(image).save(path, exif=exif)
    return path


def make_mjpeg_avi(path: Path, pictures: Sequence[bytes]) -> Path:
    """JPEG files as the frames of an AVI file, ten a second, as many cameras record."""
    with av.open(str(path), "w", format="avi") as container:
        stream = container.add_stream("mjpeg", rate=10)
        with av.open(io.BytesIO(pictures[0])) as first:
            (size,) = first.streams.video
            stream.width, stream.height, stream.pix_fmt = size.width, size.height, "yuvj420p"
        for index, picture in enumerate(pictures):
            packet = av.Packet(picture)
            packet.stream, packet.pts, packet.dts = stream, index, index
            packet.time_base, packet.is_keyframe = Fraction(1, 10), True
            container.mux(packet)
    return path


def make_audio(path: Path, seconds: float = 0.5) -> Path:
    """A silent file without any video; the suffix of `path` chooses the container."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=48_000)
        for start in range(0, int(seconds * 48_000), 1024):
            frame = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp", layout="stereo")
            frame.sample_rate, frame.pts = 48_000, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def make_song_with_cover(path: Path) -> Path:
    """Half a second of silence and a picture of its cover; `path` ends in .mp3."""
    with av.open(str(path), "w") as container:
        song = container.add_stream("libmp3lame", rate=44_100)
        cover = container.add_stream("png", rate=1)
        cover.width, cover.height, cover.pix_fmt = 32, 32, "rgb24"
        cover.disposition = Disposition.attached_pic
        picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        container.mux(cover.encode(picture) + cover.encode(None))
        for start in range(0, 22_050, 1152):
            frame = av.AudioFrame.from_ndarray(np.zeros((2, 1152), np.float32), format="fltp", layout="stereo")
            frame.sample_rate, frame.pts = 44_100, start
            container.mux(song.encode(frame))
        container.mux(song.encode(None))
    return path


def overwrite_packet(path: Path, number: int, *, count: int = 1) -> Path:
    """Zeroes the data of `count` packets from `number` (1-based) on, in place, as damage on a disk would."""
    with av.open(str(path)) as container:
        spans = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    for position, size in spans[number - 1 : number - 1 + count]:
        data[position : position + size] = bytes(size)
    path.write_bytes(data)
    return path


Bytes = npt.NDArray[np.uint8]


def flat_planes(height: int, width: int, values: tuple[int, int, int] = (100, 128, 128)) -> FramePlanes:
    """4:2:0 planes of one colour (y, u, v)."""
    shapes = ((height, width), *[(-(-height // 2), -(-width // 2))] * 2)
    return FramePlanes(
        "yuv", tuple(np.full(shape, value, np.uint8) for shape, value in zip(shapes, values, strict=True))
    )


def expected_level0(planes: FramePlanes) -> Bytes:
    """Level 0 in floating point: replicated chroma, the colour matrix, then edge replication to whole tiles."""
    height, width = planes.height_px, planes.width_px
    if planes.layout == "rgb":
        picture = planes.planes[0].astype(float)
    elif planes.layout == "gray":
        picture = planes.planes[0].astype(float)[..., None].repeat(3, axis=2)
    else:
        full = [
            plane.repeat(-(-height // plane.shape[0]), axis=0).repeat(-(-width // plane.shape[1]), axis=1)[
                :height, :width
            ]
            for plane in planes.planes
        ]
        matrix = rgb_matrix(planes.colour)
        picture = np.stack(full, axis=2) @ matrix[:, :3].T + matrix[:, 3]
    padding = ((0, -height % 32), (0, -width % 32), (0, 0))
    return np.pad(np.clip(np.rint(picture), 0, 255).astype(np.uint8), padding, mode="edge")


def expected_levels(level0: Bytes) -> list[Bytes]:
    """The whole box pyramid of a level 0, in integer arithmetic."""
    levels = [level0]
    for _ in range(5):
        fine = levels[-1].astype(np.uint16)
        total = fine[0::2, 0::2] + fine[1::2, 0::2] + fine[0::2, 1::2] + fine[1::2, 1::2]
        levels.append(((total + 2) >> 2).astype(np.uint8))
    return levels


FRAME_NS = 33_366_667


def levels_of(picture: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], ...]:
    """Levels 0…5 of a picture whose sides are multiples of 32."""
    levels = [picture]
    for _ in range(LEVELS - 1):
        wide = levels[-1].astype(np.uint16)
        sums = wide[0::2, 0::2] + wide[0::2, 1::2] + wide[1::2, 0::2] + wide[1::2, 1::2]
        levels.append(((sums + 2) >> 2).astype(np.uint8))
    return tuple(levels)


class PictureStream:
    """Yields one view after the other; a tile's version changes if its pixels did."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self._index = -1
        self._picture: npt.NDArray[np.uint8] | None = None
        self._frame = np.zeros((0, 0), np.int64)

    def cut(self) -> None:
        """Begin another epoch with the next picture."""
        self.epoch += 1
        self._picture = None

    def show(self, picture: npt.NDArray[np.uint8]) -> TextureView:
        self._index += 1
        grid = TileGrid.of(*picture.shape[:2])
        if self._picture is None:
            self._frame = np.full(grid.shape, self._index)
        else:
            differs = (picture != self._picture).any(axis=2)
            tiles = differs.reshape(grid.rows, TILE_PX, grid.cols, TILE_PX).any(axis=(1, 3))
            self._frame = np.where(tiles, self._index, self._frame)
        self._picture = picture
        stamp = FrameStamp(self._index, self._index * FRAME_NS, 0, self.epoch)
        return TextureView(stamp, grid, TileVersions(self.epoch, self._frame), MemoryTexels(levels_of(picture)))


def scenery(rows: int, cols: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """A picture of soft colours with blocks, a bar pattern and a noisy patch: uint8 [rows·32, cols·32, 3]."""
    rng = np.random.default_rng(seed)
    height, width = rows * TILE_PX, cols * TILE_PX
    down, right = np.linspace(60, 140, height)[:, None, None], np.linspace(-20, 20, width)[None, :, None]
    picture = np.broadcast_to(down + right, (height, width, 3)).copy()
    for _ in range(max(3, rows * cols // 24)):
        side = int(rng.integers(20, 80))
        top, left = int(rng.integers(0, height - side)), int(rng.integers(0, width - side))
        picture[top : top + side, left : left + side] = rng.integers(0, 256, 3)
    picture[30:60, 24:120:8] = 255
    picture[64:128, 32:96] = rng.integers(0, 256, (64, 64, 3))
    return picture.clip(0, 255).astype(np.uint8)
