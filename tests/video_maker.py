"""Small video, made in code: what the tests feed to whatever reads files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.stream import Disposition

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
    options: dict[str, str] | None = None,
) -> Path:
    """Encodes RGB frames; the suffix of `path` chooses the container.

    `pts` gives each frame's time in units of 1 / fps. `packet_pts` rewrites the PTS of the encoded packets instead,
    which may then go backward, `last_duration` the duration of the last one; `packet_pts` needs a codec without frame
    reordering, such as mjpeg or ffv1.
    """
    with av.open(str(path), "w") as container:
        stream = None
        packets: list[av.Packet] = []
        for index, image in enumerate(frames):
            if stream is None:
                stream = container.add_stream(codec, rate=fps, options=options or {})
                stream.height, stream.width, stream.pix_fmt = image.shape[0], image.shape[1], pixel_format
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
