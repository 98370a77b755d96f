"""Messages with frames: every format, and every kind of invalid message."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import zmq
from PIL import Image

from arr_coc.types import FramePlanes
from stream.clock import Clock, MonotonicClock
from stream.config import CaptureConfig, NetworkConfig
from stream.errors import ConfigError, SourceError
from stream.extensions.zeromq.source import FrameDecoder, FrameHeader, InvalidFrameMessage
from stream.sources import Source, SourceFrame
from stream.sources.factory import open_source
from tests.support.clock import FakeClock
from tests.support.network import LIMIT_S, keyed, until
from tests.support.senders import FrameSender, Message, Reading, frames_of, message, outages_of
from tests.support.video import make_video, moving_square

WIDTH, HEIGHT = 32, 16


def head(**fields: Any) -> memoryview:
    header = {"v": 1, "width": WIDTH, "height": HEIGHT, "format": "rgb24", **fields}
    return memoryview(msgspec.msgpack.encode({name: value for name, value in header.items() if value is not None}))


def picture() -> npt.NDArray[np.uint8]:
    rows, cols = np.mgrid[0:HEIGHT, 0:WIDTH]
    return np.stack([100 + 2 * rows, 80 + cols, 60 + rows], axis=-1).astype(np.uint8)


def read(parts: Sequence[memoryview]) -> tuple[FrameHeader, FramePlanes, npt.NDArray[np.uint8]]:
    header, planes, rgb = FrameDecoder().read(parts)
    return header, planes, rgb()


def jpeg(image: npt.NDArray[np.uint8]) -> bytes:
    file = BytesIO()
    Image.fromarray(image).save(file, "jpeg", quality=95)
    return file.getvalue()


@pytest.mark.parametrize("pixel_format", ["rgb24", "bgr24"])
def test_rgb_is_a_view_on_the_message_and_bgr_is_turned(pixel_format: str) -> None:
    data = picture()[..., :: 1 if pixel_format == "rgb24" else -1].tobytes()
    header, planes, rgb = read([head(format=pixel_format, t_ns=5, seq=7, camera={"name": "left"}), memoryview(data)])
    assert (header.t_ns, header.seq, header.width) == (5, 7, WIDTH), "unknown fields are left to later versions"
    assert np.array_equal(planes.planes[0], picture())
    assert np.array_equal(rgb, picture())
    assert np.shares_memory(planes.planes[0], np.frombuffer(data, np.uint8)) == (pixel_format == "rgb24")


def test_gray_is_of_full_range() -> None:
    gray = picture()[..., 0]
    _, planes, rgb = read([head(format="gray"), memoryview(gray.tobytes())])
    assert planes.layout == "gray"
    assert planes.colour.full_range
    assert np.array_equal(rgb, np.repeat(gray[..., None], 3, -1))


def test_yuv_has_its_planes_one_after_the_other() -> None:
    luma = np.full((HEIGHT, WIDTH), 81, np.uint8)
    u, v = np.full((8, 16), 90, np.uint8), np.full((8, 16), 240, np.uint8)
    data = b"".join(plane.tobytes() for plane in (luma, u, v))
    _, planes, rgb = read([head(format="yuv420p"), memoryview(data)])
    assert [plane.shape for plane in planes.planes] == [(16, 32), (8, 16), (8, 16)]
    assert all(np.array_equal(a, b) for a, b in zip(planes.planes, (luma, u, v), strict=True))
    assert np.abs(rgb[4, 4].astype(int) - (255, 0, 0)).max() <= 3


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], r"a frame has 2 parts, header and bytes; this has 0"),
        ([head()], r"this has 1"),
        ([head(), b"", b""], r"this has 3"),
        ([b"\xc1", b""], r"its header is wrong"),
        ([b"", b""], r"its header is wrong"),
        ([msgspec.msgpack.encode([1, 2]), b""], r"its header is wrong"),
        ([b"\x91" * 100_000, b""], r"its header is wrong"),
        ([b"\x81\xa1x" + b"\x91" * 100_000, b""], r"its header is wrong"),
        ([b"\x81\xa2\xff\xfe\x01", b""], r"its header is wrong"),
        ([head(width=None), b""], r"its header is wrong: .*width"),
        ([head(width="32"), b""], r"its header is wrong: .*width"),
        ([head(width=0), b""], r"its header is wrong: .*>= 1"),
        ([head(height=10**9), b""], r"its header is wrong: .*<= 16384"),
        ([head(format="nv12"), b""], r"its header is wrong: .*nv12"),
        ([head(t_ns=1.5), b""], r"its header is wrong: .*t_ns"),
        ([head(v=2), b""], r"version 2; this program reads version 1"),
        ([head(), b"123"], r"rgb24 of 32x16 has 1536 bytes, got 3"),
        ([head(format="gray"), b"1" * 513], r"gray of 32x16 has 512 bytes, got 513"),
        ([head(format="yuv420p"), b"1" * 512], r"yuv420p of 32x16 has 768 bytes, got 512"),
        ([head(format="yuv420p", width=31), b""], r"yuv420p needs even sides, got 31x16"),
        ([head(format="jpeg"), b""], r"it is not a JPEG"),
        ([head(format="jpeg"), b"no jpeg at all"], r"its JPEG cannot be decoded"),
        ([head(format="jpeg", width=64), jpeg(picture())], r"its JPEG has 32x16 pixels, its header says 64x16"),
    ],
)
def test_invalid_messages_are_refused_with_the_reason(parts: Sequence[bytes], reason: str) -> None:
    with pytest.raises(InvalidFrameMessage, match=reason):
        FrameDecoder().read([memoryview(part) for part in parts])


def test_jpeg_is_decoded_and_a_bad_one_does_not_spoil_the_next() -> None:
    reader = FrameDecoder()
    for _ in range(3):
        with pytest.raises(InvalidFrameMessage):
            reader.read([head(format="jpeg"), memoryview(b"\xff\xd8\xff\xe0 nothing")])
        _, planes, rgb = reader.read([head(format="jpeg"), memoryview(jpeg(picture()))])
        assert (planes.layout, planes.width_px, planes.height_px) == ("yuv", WIDTH, HEIGHT)
        assert np.abs(rgb().astype(int) - picture()).max() <= 12


def test_damage_never_raises_anything_else() -> None:
    random = np.random.default_rng(3)
    reader = FrameDecoder()
    good = [bytes(head(format="jpeg", t_ns=1, seq=2)), jpeg(picture())]
    refused = 0
    for _ in range(500):
        parts = [bytearray(part) for part in good]
        for part in parts:
            for place in random.integers(0, len(part), 2):
                part[place] = random.integers(0, 256)
        try:
            reader.read([memoryview(bytes(part)) for part in parts])
        except InvalidFrameMessage:
            refused += 1
    assert refused > 100


S = 1_000_000_000
DOCS = Path(__file__).parents[3] / "docs" / "sources.md"


def opened(
    sender: FrameSender,
    clock: Clock | None = None,
    network: NetworkConfig | None = None,
    end: str = "",
    **capture: object,
) -> Source:
    config = CaptureConfig.model_validate({"open_timeout_s": LIMIT_S, **capture})
    return open_source(f"zmq+{sender.endpoint}{end}", config, clock or MonotonicClock(), network)


def shade_of(frame: SourceFrame) -> int:
    return int(frame.planes.planes[0][0, 0, 0])


def test_it_gives_what_is_sent() -> None:
    with FrameSender(message(77, format="rgb24")) as sender, opened(sender, max_frames=5) as source:
        info = source.describe()
        frames = Reading(source).frames(5)
        assert source.trailing_skipped() == ()
    assert (info.name, info.codec, info.pixel_format) == (f"zmq+{sender.endpoint}", "zmq", "rgb24")
    assert (info.live, info.width_px, info.height_px, info.fps, info.frames) == (True, 64, 48, None, None)
    assert [frame.frame_index for frame in frames] == [0, 1, 2, 3, 4]
    assert all((frame.planes.planes[0] == 77).all() for frame in frames)
    assert [frame.discontinuity for frame in frames] == ["start", *[None] * 4]
    times = [frame.media_ns for frame in frames]
    assert times[0] == 0
    assert times == sorted(set(times))


def test_over_ipc_in_the_work_size(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/frames"
    with FrameSender(message(), endpoint=endpoint) as sender, opened(sender, size="96x64") as source:
        assert [frame.planes.planes[0].shape for frame in Reading(source).frames(2)] == [(64, 96, 3)] * 2


def test_another_size_or_format_is_a_discontinuity() -> None:
    with FrameSender(message()) as sender, opened(sender) as source:
        reading = Reading(source)
        reading.frames(1)
        for parts, change in (
            (message(width=32), "resolution"),
            ([message(width=32, format="gray")[0], bytes(32 * 48)], "format"),
        ):
            sender.now = parts
            assert reading.frame(lambda frame: frame.discontinuity not in ("start", None)).discontinuity == change


def test_times_are_the_senders_if_it_sends_them() -> None:
    """The sender's clock has another zero; only the differences count."""
    clock = FakeClock(50 * S)
    with FrameSender(message(t_ns=9 * S)) as sender, opened(sender, clock) as source:
        reading = Reading(source)
        (before,) = reading.frames(1)
        assert before.media_ns == 0
        clock.advance(S)
        sender.now = message(200, t_ns=9 * S + S // 4)
        # The first message may arrive twice; its time does not advance, so that frame follows the clock.
        while shade_of(frame := reading.frames(1)[0]) != 200:
            before = frame
        assert frame.media_ns - before.media_ns == S // 4


@pytest.mark.parametrize(("t_ns", "captured_ns"), [(49 * S, 49 * S), (51 * S, 50 * S), (4 * S, 50 * S), (None, 50 * S)])
def test_a_capture_time_is_used_if_it_is_plausible(t_ns: int | None, captured_ns: int) -> None:
    with FrameSender(message(t_ns=t_ns)) as sender, opened(sender, FakeClock(50 * S), max_frames=1) as source:
        assert Reading(source).frames(1)[0].capture_ns == captured_ns


def test_dropped_frames_are_counted() -> None:
    with FrameSender(message(seq=1)) as sender, opened(sender) as source:
        reading = Reading(source)
        reading.frames(1)
        sender.now = message(200, seq=101)
        reading.frame(lambda frame: shade_of(frame) == 200)
        assert source.dropped_frames >= 99  # type: ignore[attr-defined]


def test_pulled_frames_come_every_one_and_their_sender_waits() -> None:
    large = message(width=1280, height=720)
    with FrameSender(large, kind=zmq.PUSH) as sender, opened(sender, end="?pull", max_frames=25) as source:
        assert not source.describe().live
        time.sleep(0.2)
        assert sender.sent_count < 20
        assert len(list(source.frames())) == 25
        assert source.dropped_frames == 0  # type: ignore[attr-defined]


def test_messages_that_cannot_be_read_are_skipped_and_reported() -> None:
    with FrameSender(message()) as sender, opened(sender) as source:
        reading = Reading(source)
        reading.frames(1)
        sender.now = [b"\xc1", b"nonsense"]
        begin = sender.sent_count
        until(lambda: sender.sent_count >= begin + 5)
        sender.now = message(1)
        (item,) = reading.frame(lambda frame: bool(frame.skipped)).skipped
        assert re.fullmatch(r"message \d+ to \d+", item.what)
        assert item.count >= 2
        assert item.reason.startswith("its header is wrong")


Silenced = tuple[FrameSender, Source, Reading, FakeClock]


@contextmanager
def silenced(then: Message | None = None, **capture: object) -> Iterator[Silenced]:
    """A source after one frame and six seconds without messages, or with `then` only."""
    clock = FakeClock()
    with FrameSender(message(seq=1)) as sender, opened(sender, clock, **{"stall_s": 5.0, **capture}) as source:
        reading = Reading(source)
        reading.frames(1)
        sender.now = then
        time.sleep(0.02)  # the reader sees that nothing comes
        clock.advance(6 * S)
        yield sender, source, reading, clock


def test_a_silence_is_an_outage_and_its_end_is_reported() -> None:
    with silenced() as (sender, _, reading, clock):
        outage = reading.lost()
        assert outage.reason == "no frame for 5 s"
        clock.advance(4 * S)
        sender.now = message()
        items = reading.until(lambda items: bool(frames_of(items)))
    (back,), (frame,) = outages_of(items), frames_of(items)
    assert back.lasted_s == pytest.approx(10, abs=0.1)
    assert (frame.discontinuity, frame.frame_index) == ("reconnect", outage.frame_index + 1)
    assert frame.media_ns - outage.media_ns == pytest.approx(10 * S, abs=S / 10)


def test_another_size_after_a_silence_is_reported_as_that_and_its_numbers_are_no_drops() -> None:
    with silenced() as (sender, source, reading, _):
        reading.lost()
        before = source.dropped_frames  # type: ignore[attr-defined]
        sender.now = message(width=32, seq=1001)
        assert reading.frames(1)[0].discontinuity == "resolution"
        assert source.dropped_frames - before < 900  # type: ignore[attr-defined]


def test_nonsense_is_silence_too() -> None:
    with silenced([b"x"]) as (_, _, reading, _):
        assert reading.lost().reason.startswith("no frame for 5 s, only invalid messages: a frame has 2 parts")


def test_a_silence_ends_the_run_without_reconnection() -> None:
    message = r"is lost: no frame for 5 s; set capture\.reconnect = true to wait for it"
    with silenced(reconnect=False) as (_, _, reading, _), pytest.raises(SourceError, match=message):
        reading.frames(10**9)


def test_a_sender_that_is_started_again_is_received_again() -> None:
    with FrameSender(message(), endpoint="tcp://127.0.0.1:*") as sender, opened(sender, stall_s=0.2) as source:
        reading = Reading(source)
        reading.frames(1)
        sender.__exit__(None, None, None)
        reading.lost()
        with FrameSender(message(5), endpoint=sender.endpoint):
            reading.back()
            assert shade_of(reading.frames(1)[0]) == 5


class TestNoSender:
    def fails(self, address: str, pattern: str, network: NetworkConfig | None = None, limit_s: float = 0.3) -> None:
        with pytest.raises((SourceError, ConfigError), match=pattern):
            open_source(address, CaptureConfig(open_timeout_s=limit_s), MonotonicClock(), network)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("receive")]

    def test_no_sender(self) -> None:
        self.fails("zmq+tcp://127.0.0.1:9", r"sent nothing within 0\.3 s; start the sender, check the address$")

    def test_a_sender_without_frames(self) -> None:
        with FrameSender(None) as sender:
            self.fails(f"zmq+{sender.endpoint}", r"is there, but sent no frame within 0\.3 s; .* on a PUB socket\?")
        with FrameSender(None, kind=zmq.PUSH) as sender:
            self.fails(f"zmq+{sender.endpoint}?pull", r"on a PUSH socket\?")

    def test_a_sender_of_other_messages(self) -> None:
        with FrameSender([msgspec.msgpack.encode({"v": 9}), b""]) as sender:
            self.fails(f"zmq+{sender.endpoint}", r"sends only invalid messages: its header is wrong: .*; docs/")

    @pytest.mark.parametrize("address", ["zmq+tcp://nowhere", "zmq+tcp://host:port", "zmq+udp://h:1", "zmq+ipc://"])
    def test_an_invalid_address(self, address: str) -> None:
        self.fails(address, "is not a socket address; write tcp://HOST:PORT or ipc://PATH")

    def test_an_address_that_zeromq_refuses(self) -> None:
        self.fails("zmq+tcp://no host:5", "cannot connect to tcp://no host:5", NetworkConfig(plain_tcp=True), 5.0)

    def test_another_machine_without_keys(self) -> None:
        self.fails("zmq+tcp://192.0.2.1:5558", "leaves this machine without keys")

    @pytest.mark.parametrize(
        ("capture", "pattern"),
        [
            ({"start_s": 2.0}, r"capture\.start_s = 2 is for files, and zmq\+tcp:.* is live"),
            ({"size": "99999x1"}, r"capture\.size"),
        ],
    )
    def test_a_beginning_and_a_work_size_too_large(self, capture: dict[str, Any], pattern: str) -> None:
        with pytest.raises(ConfigError, match=pattern):
            open_source("zmq+tcp://127.0.0.1:9", CaptureConfig(**capture), FakeClock())


class TestKeys:
    def server_pair(self, folder: Path) -> tuple[bytes, bytes]:
        public, secret = zmq.auth.load_certificate(folder / "server" / "server.key_secret")
        assert secret is not None
        return secret, public

    def test_with_the_right_keys_frames_come(self, tmp_path: Path) -> None:
        network = keyed(tmp_path)
        with (
            FrameSender(message(), curve=self.server_pair(tmp_path / "keys")) as sender,
            opened(sender, network=network, max_frames=2) as source,
        ):
            Reading(source).frames(2)

    def test_without_keys_or_with_others_nothing_is_seen(self, tmp_path: Path) -> None:
        keyed(tmp_path)
        with FrameSender(message(), curve=self.server_pair(tmp_path / "keys")) as sender:
            with pytest.raises(
                SourceError,
                match=r"rejects the connection: its keys and those of --keys do not match|sent nothing within",
            ):
                opened(sender, open_timeout_s=2.0)
            with pytest.raises(SourceError, match=r"or has other keys|do not match"):
                opened(sender, network=keyed(tmp_path, "others"), open_timeout_s=0.5)


def test_the_documented_sender_is_understood(tmp_path: Path) -> None:
    """The example of docs/sources.md runs as printed, except for its clip, port and pace."""
    (example,) = re.findall(r"```python\n(import time\n.*?send_multipart.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    clip = make_video(tmp_path / "clip.mkv", moving_square(25), codec="ffv1")
    endpoint = f"ipc://{tmp_path}/frames"
    program = example.replace("tcp://127.0.0.1:5558", endpoint).replace("clip.mp4", str(clip))
    assert program != example
    looped = program + "socket.close(linger=0)\n"
    sender = subprocess.Popen([sys.executable, "-c", looped], stderr=subprocess.PIPE)
    try:
        with open_source(
            f"zmq+{endpoint}", CaptureConfig(max_frames=3, open_timeout_s=LIMIT_S), MonotonicClock()
        ) as source:
            frames = Reading(source).frames(3)
        red = frames[-1].planes.planes[0].astype(np.int64)
        assert (red[20, :, 0] - red[20, :, 2]).max() > 100
    finally:
        _, error = sender.communicate(timeout=LIMIT_S)
    assert (sender.returncode, error) == (0, b"")
