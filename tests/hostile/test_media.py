"""Media made to harm: files that unfold to gigabytes, and files that lead to others than the named one."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from stream.cli import main
from stream.config import MAX_PIXELS, CaptureConfig
from stream.errors import SourceError
from stream.extensions.zeromq.source import FrameDecoder, InvalidFrameMessage
from stream.sources import SourceFrame
from stream.sources.factory import open_source
from tests.support.clock import FakeClock
from tests.support.senders import Server
from tests.support.video import make_video, moving_square

ROOT = Path(__file__).resolve().parents[2]

GROWTH_MAX_BYTES = 200 << 20
"""Limit of memory that all bombs together may add to a process; most would add more, each by itself."""

LIMIT_S = 120.0
"""Far above the time of a refusal; a bomb that unfolds takes minutes."""


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *extra: bytes, rows: int | None = None) -> bytes:
    """A black RGB picture of which only `rows` are there; `extra` chunks follow its header."""
    pack, row = zlib.compressobj(1), bytes(1 + 3 * width)
    data = b"".join(pack.compress(row) for _ in range(height if rows is None else rows)) + pack.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def unfolding(size_bytes: int) -> bytes:
    pack, block = zlib.compressobj(1), bytes(1 << 20)
    return b"".join(pack.compress(block) for _ in range(size_bytes >> 20)) + pack.flush()


def gif(frames: int, side: int) -> bytes:
    """A GIF of `frames` pictures of one pixel on a screen of `side` by `side`."""
    head = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    picture = (
        b"\x21\xf9\x04\x04\x01\x00\x00\x00" + b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    )
    return head + picture * frames + b"\x3b"


def tiff(side: int) -> bytes:
    """The header of a TIFF of RGB, its one strip cut short."""
    tags = [
        (256, 4, side),
        (257, 4, side),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 2),
        (273, 4, 256),
        (277, 3, 3),
        (278, 4, side),
    ]
    tags.append((279, 4, 3 * side * side & 0xFFFFFFFF))
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return (b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)).ljust(4096, b"\0")


def webp(side: int) -> bytes:
    """A lossless WebP that declares `side` by `side` and holds hardly anything."""
    bits = b"\x2f" + struct.pack("<I", (side - 1) | (side - 1) << 14) + bytes(64)
    body = b"WEBPVP8L" + struct.pack("<I", len(bits)) + bits + b"\0" * (len(bits) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def bmp(side: int) -> bytes:
    info = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 3 * side * side & 0xFFFFFFFF, 0, 0, 54) + info + bytes(4096)


def jpeg(folder: Path, side: int) -> bytes:
    """A small JPEG whose header declares another size."""
    path = folder / "small.jpg"
    Image.fromarray(np.full((64, 64, 3), 90, np.uint8)).save(path)
    data = bytearray(path.read_bytes())
    path.unlink()
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", side, side)
    return bytes(data)


def avi(folder: Path, side: int) -> bytes:
    """A video whose container and pictures declare another size than they have."""
    path = make_video(folder / "small.avi", moving_square(3), codec="mjpeg", pixel_format="yuvj420p")
    data = bytearray(path.read_bytes())
    path.unlink()
    at = data.index(b"strf")
    data[at + 12 : at + 20] = struct.pack("<ii", side, side)
    at = -1
    while (at := data.find(b"\xff\xc0\x00\x11", at + 1)) >= 0:
        data[at + 5 : at + 9] = struct.pack(">HH", side, side)
    return bytes(data)


BOMBS: dict[str, Callable[[Path], bytes]] = {
    "huge.png": lambda folder: png(65_000, 65_000, rows=64),
    "whole.png": lambda folder: png(9_000, 9_000),
    "text.png": lambda folder: png(64, 64, *[chunk(b"zTXt", b"k\0\0" + unfolding(50 << 20))] * 8),
    "profile.png": lambda folder: png(64, 64, chunk(b"iCCP", b"k\0\0" + unfolding(200 << 20))),
    "screen.gif": lambda folder: gif(3, 65_535),
    "huge.tif": lambda folder: tiff(60_000),
    "huge.webp": lambda folder: webp(16_384),
    "huge.bmp": lambda folder: bmp(40_000),
    "huge.jpg": lambda folder: jpeg(folder, 12_000),
    "huge.avi": lambda folder: avi(folder, 65_535),
}

OPENS = """
import json, resource, sys
from stream.clock import MonotonicClock
from stream.config import MAX_PIXELS, CaptureConfig
from stream.errors import SourceError
from stream.sources.factory import open_source
def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
begin, results = peak_bytes(), {}
for address in sys.argv[1:]:
    try:
        with open_source(address, CaptureConfig(max_frames=50), MonotonicClock()) as source:
            results[address] = f"{sum(1 for _ in source.frames())} frames"
    except SourceError as error:
        results[address] = str(error)
print(json.dumps({"results": results, "growth_bytes": peak_bytes() - begin}))
"""


def opened_apart(*addresses: Path) -> tuple[list[str], int]:
    """The outcome of each address in a separate process, and the peak growth of that process in bytes."""
    process = subprocess.run(
        [sys.executable, "-c", OPENS, *map(str, addresses)], capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT
    )
    assert process.returncode == 0, process.stderr[-2000:]
    result = json.loads(process.stdout)
    return [result["results"][str(address)] for address in addresses], result["growth_bytes"]


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of them, and one picture that does no harm."""
    folder = tmp_path_factory.mktemp("bombs")
    for name, make_bomb in BOMBS.items():
        (folder / name).write_bytes(make_bomb(folder))
    (folder / "good.png").write_bytes(png(64, 48))
    return folder


class TestBombs:
    def test_none_unfolds(self, bombs: Path) -> None:
        paths = [bombs / name for name in BOMBS]
        outcomes, growth_bytes = opened_apart(*paths)
        for path, line in zip(paths, outcomes, strict=True):
            assert line.startswith((f"{path} has ", f"no frame of {path} can be decoded (", f"{path} is not a video"))
            assert "\n" not in line
        assert growth_bytes < GROWTH_MAX_BYTES
        assert outcomes[0] == (
            f"{paths[0]} has 65000x65000 pixels, more than capture.max_pixels = {MAX_PIXELS}; scale it down, or raise "
            "capture.max_pixels"
        )

    def test_nor_does_any_in_a_folder(self, bombs: Path) -> None:
        outcomes, growth_bytes = opened_apart(bombs)
        assert outcomes in (["1 frames"], ["2 frames"], ["3 frames"]), "and those whose metadata Pillow leaves alone"
        assert growth_bytes < GROWTH_MAX_BYTES

    def test_a_hundred_thousand_pictures_are_read_one_by_one(self, tmp_path: Path) -> None:
        (tmp_path / "long.gif").write_bytes(gif(100_000, 16))
        outcomes, growth_bytes = opened_apart(tmp_path / "long.gif")
        assert outcomes == ["50 frames"]
        assert growth_bytes < GROWTH_MAX_BYTES

    def test_the_limit_can_be_moved(self, tmp_path: Path) -> None:
        path = make_video(tmp_path / "a.mp4", moving_square(3))
        for limit, fits in ((64 * 48 - 1, False), (128 * 128, True)):
            config = CaptureConfig(max_pixels=limit)
            if fits:
                with open_source(str(path), config, FakeClock()) as source:
                    assert len(list(source.frames())) == 3
            else:
                with pytest.raises(SourceError, match=r"raise capture\.max_pixels"):
                    open_source(str(path), config, FakeClock())

    def test_a_picture_that_grows_on_the_way_is_skipped(self, tmp_path: Path) -> None:
        parts = [
            make_video(tmp_path / f"{side}.mjpeg", moving_square(3, side, side), codec="mjpeg", pixel_format="yuvj420p")
            for side in (64, 256)
        ]
        joined = tmp_path / "joined.mjpeg"
        joined.write_bytes(b"".join(part.read_bytes() for part in (*parts, parts[0])))
        with open_source(str(joined), CaptureConfig(max_pixels=128 * 128), FakeClock()) as source:
            frames = [frame for frame in source.frames() if isinstance(frame, SourceFrame)]
        assert {frame.planes.width_px for frame in frames} == {64}
        (skipped_item,) = [item for frame in frames for item in frame.skipped]
        assert skipped_item.reason == "more than capture.max_pixels = 16384, or damaged"

    def test_frames_over_zeromq_have_the_same_limit(self, tmp_path: Path) -> None:
        reader = FrameDecoder(64 * 64)
        for kind, width, data in (("gray", 65, bytes(65 * 64)), ("jpeg", 64, jpeg(tmp_path, 65_500))):
            header = msgspec.msgpack.encode({"v": 1, "width": width, "height": 64, "format": kind})
            with pytest.raises(InvalidFrameMessage, match=r"max_pixels = 4096 allows|its JPEG cannot be decoded"):
                reader.read([memoryview(header), memoryview(data)])


PLAYLISTS = {
    "a.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{url}\n#EXT-X-ENDLIST\n",
    "a.ffconcat": "ffconcat version 1.0\nfile {name}\n",
    "a.mpd": '<?xml version="1.0"?>\n<MPD type="static"><Period><AdaptationSet mimeType="video/mp4">'
    '<Representation id="1"><BaseURL>{url}</BaseURL></Representation></AdaptationSet></Period></MPD>\n',
    "a.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
    "a.mp4": "#EXTM3U\n#EXTINF:1,\n{url}\n#EXT-X-ENDLIST\n",
}
KINDS = ["an HLS playlist", "a list of files (ffconcat)", "a DASH manifest", "a description of a session (SDP)"]


def playlist(name: str, video: Path) -> str:
    return PLAYLISTS[name].format(url=f"file://{video}", name=video.name)


class TestOtherFiles:
    @pytest.fixture
    def private(self, tmp_path: Path) -> Path:
        """A video that lies beside the opened file, and was not asked for."""
        return make_video(tmp_path / "private.ts", moving_square(5), codec="mpeg2video")

    @pytest.mark.parametrize(("name", "kind"), list(zip(PLAYLISTS, [*KINDS, KINDS[0]], strict=True)))
    def test_a_playlist_is_refused_in_one_line(
        self, private: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = private.with_name(name)
        path.write_text(playlist(name, private), encoding="utf-8")
        assert main(["caption", str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line == (
            f"error: {path} is {kind}, which names other files or addresses; only the source itself is opened, so give "
            f"the video or its address, or join it first: ffmpeg -i {name} -c copy joined.mkv"
        )

    @pytest.mark.parametrize("name", ["a.m3u8", "a.mpd"])
    def test_a_web_server_cannot_name_a_file_here(self, private: Path, tmp_path: Path, name: str) -> None:
        folder = tmp_path / "web"
        folder.mkdir()
        (folder / name).write_text(playlist(name, private), encoding="utf-8")
        with Server(folder) as web, pytest.raises(SourceError, match=r"127\.0\.0\.1:\d+/a\.\w+ "):
            open_source(f"{web.url}/{name}", CaptureConfig(open_timeout_s=30.0), FakeClock())

    @pytest.mark.parametrize("name", ["a.m3u8", "a.ffconcat", "a.sdp"])
    def test_nor_can_a_pipe(self, private: Path, name: str, tmp_path: Path) -> None:
        from stream.sources.file import StdinSource

        reading, writing = os.pipe()
        text = playlist(name, private).encode()
        writer = threading.Thread(target=lambda: (os.write(writing, text), os.close(writing)))
        writer.start()
        try:
            with pytest.raises(SourceError, match="standard input is not a video that FFmpeg can read from a pipe"):
                StdinSource(CaptureConfig(), FakeClock(), reading)
        finally:
            writer.join()
            os.close(reading)

    @pytest.mark.parametrize(
        "address",
        [
            "concat:{a}|{a}",
            "subfile,,start,0,end,0,,:{a}",
            "file:{a}",
            "crypto:{a}",
            "cache:{a}",
            "async:{a}",
            "lavfi:testsrc",
        ],
    )
    def test_protocols_of_ffmpeg_are_names_of_files(self, private: Path, address: str) -> None:
        with pytest.raises(SourceError, match="does not exist; check the name"):
            open_source(address.format(a=private), CaptureConfig(), FakeClock())

    @pytest.mark.parametrize(
        "address", ["file://{a}", "data://text/plain,x", "concat://{a}", "gopher://x/", "ftp://x/a"]
    )
    def test_other_schemes_are_refused(self, private: Path, address: str) -> None:
        with pytest.raises(SourceError, match=r"begins with no scheme that can be read|is not read; "):
            open_source(address.format(a=private), CaptureConfig(), FakeClock())

    def test_a_number_in_a_name_is_no_sequence(self, tmp_path: Path) -> None:
        for name, side in (("a%d.png", 32), ("a1.png", 64), ("a2.png", 64)):
            (tmp_path / name).write_bytes(png(side, side))
        with open_source(str(tmp_path / "a%d.png"), CaptureConfig(), FakeClock()) as source:
            assert [frame.planes.width_px for frame in source.frames() if isinstance(frame, SourceFrame)] == [32]

    @pytest.mark.parametrize("pattern", ["", "/*.png", "/**/*.png"])
    def test_a_link_out_of_a_folder_is_not_followed(self, tmp_path: Path, pattern: str) -> None:
        folder, outside = tmp_path / "shots", tmp_path / "outside.png"
        folder.mkdir()
        outside.write_bytes(png(96, 96))
        (folder / "a.png").symlink_to(outside)
        (folder / "b.png").write_bytes(png(32, 32))
        (folder / "c.png").symlink_to("b.png")
        with open_source(f"{folder}{pattern}", CaptureConfig(), FakeClock()) as source:
            frames = [frame for frame in source.frames() if isinstance(frame, SourceFrame)]
        assert [frame.planes.width_px for frame in frames] == [32, 32], "a link to a picture beside it is followed"
        (skipped_item,) = frames[0].skipped
        assert (skipped_item.what, skipped_item.reason) == (
            str(folder / "a.png"),
            f"it is a link that leads out of {folder}; copy its target there",
        )

    def test_a_folder_may_be_a_link_itself(self, tmp_path: Path) -> None:
        (tmp_path / "shots").mkdir()
        (tmp_path / "shots" / "a.png").write_bytes(png(32, 32))
        (tmp_path / "link").symlink_to("shots")
        with open_source(str(tmp_path / "link"), CaptureConfig(), FakeClock()) as source:
            assert len(list(source.frames())) == 1
