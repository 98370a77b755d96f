"""Frames over ZeroMQ: the newest or every one, what is wrong with some, silence and return, keys, and no sender."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
from frame_sender import Sender, message
from video_maker import make_video, moving_square

from stream.clock import Clock, FakeClock, MonotonicClock
from stream.config import CaptureConfig, NetworkConfig
from stream.errors import ConfigError, SourceError
from stream.sources import Source, SourceFrame
from stream.sources.base import SourceOutage
from stream.sources.open import open_source
from stream.transport.curve import make_keys
from tests import waiting
from tests.waiting import LIMIT_S

S = 1_000_000_000
DOCS = Path(__file__).parent.parent / "docs" / "sources.md"


def opened(
    sender: Sender, clock: Clock | None = None, network: NetworkConfig | None = None, end: str = "", **capture: object
) -> Source:
    config = CaptureConfig.model_validate({"open_timeout_s": LIMIT_S, **capture})
    return open_source(f"zmq+{sender.endpoint}{end}", config, clock or MonotonicClock(), network)


def frames_of(source: Source, limit_s: float = LIMIT_S) -> Iterator[SourceFrame | SourceOutage]:
    """What comes within the time limit, which only a test that fails ever meets."""
    end = time.monotonic() + limit_s
    return source.frames(lambda: time.monotonic() > end)


def until(
    items: Iterator[SourceFrame | SourceOutage], wanted: Callable[[SourceFrame | SourceOutage], bool]
) -> list[SourceFrame | SourceOutage]:
    """What comes, up to and with the first that is wanted."""
    seen = []
    for item in items:
        seen.append(item)
        if wanted(item):
            return seen
    pytest.fail(f"it never came; {len(seen)} others did")


def is_frame(item: SourceFrame | SourceOutage) -> bool:
    return isinstance(item, SourceFrame)


def is_outage(item: SourceFrame | SourceOutage) -> bool:
    return isinstance(item, SourceOutage)


def test_it_gives_what_is_sent() -> None:
    with Sender(message(77, format="rgb24")) as sender, opened(sender, max_frames=5) as source:
        info = source.describe()
        frames = list(frames_of(source))
        assert source.trailing_skipped() == ()
    assert (info.name, info.codec, info.pixel_format) == (f"zmq+{sender.endpoint}", "zmq", "rgb24")
    assert (info.live, info.width_px, info.height_px, info.fps, info.frames) == (True, 64, 48, None, None)
    assert [frame.frame_index for frame in frames] == [0, 1, 2, 3, 4]
    assert all(isinstance(frame, SourceFrame) and (frame.planes.planes[0] == 77).all() for frame in frames)
    assert [frame.discontinuity for frame in frames if isinstance(frame, SourceFrame)] == ["start", *[None] * 4]
    times = [frame.media_ns for frame in frames]
    assert times[0] == 0
    assert times == sorted(set(times))


def test_over_ipc_too(tmp_path: Path) -> None:
    with Sender(message(), endpoint=f"ipc://{tmp_path}/frames") as sender, opened(sender, max_frames=2) as source:
        assert len(list(frames_of(source))) == 2


def test_the_work_size_is_honoured() -> None:
    with Sender(message()) as sender, opened(sender, size="96x64", max_frames=1) as source:
        (frame,) = frames_of(source)
        assert isinstance(frame, SourceFrame)
        assert frame.planes.planes[0].shape == (64, 96, 3)


def test_another_size_or_format_is_a_discontinuity() -> None:
    with Sender(message()) as sender, opened(sender) as source:
        items = frames_of(source)
        until(items, is_frame)
        for sent, change in (
            (message(width=32), "resolution"),
            ([message(width=32, format="gray")[0], bytes(32 * 48)], "format"),
        ):
            sender.now = sent
            frame = until(items, lambda item: getattr(item, "discontinuity", None) not in ("start", None))[-1]
            assert isinstance(frame, SourceFrame)
            assert frame.discontinuity == change


def test_times_are_the_senders_where_it_tells_them() -> None:
    """Its clock has another zero; only the differences count."""
    clock = FakeClock(50 * S)
    with Sender(message(t_ns=9 * S)) as sender, opened(sender, clock) as source:
        items = frames_of(source)
        first = until(items, is_frame)[0]
        clock.advance(S)
        sender.now = message(t_ns=9 * S + S // 4)
        later = until(items, lambda item: item.media_ns >= S // 4)[-1]
        assert first.media_ns == 0
        assert later.media_ns == S // 4


@pytest.mark.parametrize(("t_ns", "captured_ns"), [(49 * S, 49 * S), (51 * S, 50 * S), (4 * S, 50 * S), (None, 50 * S)])
def test_a_capture_time_is_believed_where_it_can_be_true(t_ns: int | None, captured_ns: int) -> None:
    with Sender(message(t_ns=t_ns)) as sender, opened(sender, FakeClock(50 * S), max_frames=1) as source:
        (frame,) = frames_of(source)
        assert isinstance(frame, SourceFrame)
        assert frame.capture_ns == captured_ns


def test_frames_that_nobody_had_time_for_are_counted() -> None:
    with Sender(message(seq=1)) as sender, opened(sender) as source:
        items = frames_of(source)
        until(items, is_frame)
        sender.now = message(200, seq=101)
        until(items, lambda item: isinstance(item, SourceFrame) and int(item.planes.planes[0][0, 0, 0]) == 200)
        assert source.dropped >= 99  # type: ignore[attr-defined]


def test_pulled_frames_come_every_one_and_their_sender_waits() -> None:
    large = message(width=1280, height=720)
    with Sender(large, kind=zmq.PUSH) as sender, opened(sender, end="?pull", max_frames=25) as source:
        assert not source.describe().live
        time.sleep(0.2)
        assert sender.sent < 20
        assert len(list(frames_of(source))) == 25
        assert source.dropped == 0  # type: ignore[attr-defined]


def test_messages_that_cannot_be_read_are_skipped_and_told() -> None:
    with Sender(message()) as sender, opened(sender) as source:
        items = frames_of(source)
        until(items, is_frame)
        sender.now = [b"\xc1", b"nonsense"]
        begin = sender.sent
        waiting.until(lambda: sender.sent >= begin + 5)
        sender.now = message(1)
        frame = until(items, lambda item: isinstance(item, SourceFrame) and bool(item.skipped))[-1]
        assert isinstance(frame, SourceFrame)
        (item,) = frame.skipped
        assert re.fullmatch(r"message \d+ to \d+", item.what)
        assert item.count >= 2
        assert item.reason.startswith("its header is wrong")


def silence(clock: FakeClock, seconds: float) -> None:
    """Lets the reader see that nothing has come for so long."""
    time.sleep(0.02)
    clock.advance(int(seconds * S))


class TestSilence:
    def test_it_is_an_outage_and_its_end_is_told(self) -> None:
        clock = FakeClock()
        with Sender(message()) as sender, opened(sender, clock, stall_s=5.0) as source:
            items = frames_of(source)
            until(items, is_frame)
            sender.now = None
            silence(clock, 6)
            gone = until(items, is_outage)[-1]
            assert isinstance(gone, SourceOutage)
            assert (gone.reason, gone.lasted_s) == ("no frame for 5 s", None)
            clock.advance(4 * S)
            sender.now = message()
            *_, back, frame = until(items, is_frame)
            assert isinstance(back, SourceOutage)
            assert isinstance(frame, SourceFrame)
            assert back.lasted_s == pytest.approx(10, abs=0.1)
            assert frame.discontinuity == "reconnect"
            assert frame.frame_index == gone.frame_index + 1
            assert frame.media_ns - gone.media_ns == pytest.approx(10 * S, abs=S / 10)

    def test_another_size_afterwards_is_told_as_that(self) -> None:
        clock = FakeClock()
        with Sender(message()) as sender, opened(sender, clock, stall_s=5.0) as source:
            items = frames_of(source)
            until(items, is_frame)
            sender.now = None
            silence(clock, 6)
            until(items, is_outage)
            sender.now = message(width=32)
            frame = until(items, is_frame)[-1]
            assert isinstance(frame, SourceFrame)
            assert frame.discontinuity == "resolution"

    def test_nonsense_is_silence_too(self) -> None:
        clock = FakeClock()
        with Sender(message()) as sender, opened(sender, clock) as source:
            items = frames_of(source)
            until(items, is_frame)
            sender.now = [b"x"]
            silence(clock, 6)
            gone = until(items, is_outage)[-1]
            assert isinstance(gone, SourceOutage)
            assert gone.reason.startswith("no frame for 5 s, only messages that cannot be read: a frame has 2 parts")

    def test_it_ends_the_run_where_that_is_asked_for(self) -> None:
        clock = FakeClock()
        with Sender(message()) as sender, opened(sender, clock, reconnect=False) as source:
            items = frames_of(source)
            until(items, is_frame)
            sender.now = None
            silence(clock, 6)
            with pytest.raises(SourceError, match=r"is lost: no frame for 5 s; capture\.reconnect would wait for it"):
                list(frames_of(source))

    def test_a_sender_that_is_started_again_is_heard_again(self) -> None:
        with Sender(message(), endpoint="tcp://127.0.0.1:*") as sender, opened(sender, stall_s=0.2) as source:
            items = frames_of(source)
            until(items, is_frame)
            sender.__exit__(None, None, None)
            until(items, is_outage)
            with Sender(message(5), endpoint=sender.endpoint):
                back = until(items, is_frame)[-2]
                assert isinstance(back, SourceOutage)
                assert back.lasted_s is not None


class TestCountsAfterSilence:
    def test_what_was_numbered_meanwhile_was_not_dropped(self) -> None:
        clock = FakeClock()
        with Sender(message(seq=1)) as sender, opened(sender, clock) as source:
            items = frames_of(source)
            until(items, is_frame)
            sender.now = None
            silence(clock, 6)
            until(items, is_outage)
            before = source.dropped  # type: ignore[attr-defined]
            sender.now = message(seq=1001)
            until(items, is_frame)
            assert source.dropped - before < 900  # type: ignore[attr-defined]


class TestNoSender:
    def fails(self, address: str, pattern: str, network: NetworkConfig | None = None, limit_s: float = 0.3) -> None:
        with pytest.raises((SourceError, ConfigError), match=pattern):
            open_source(address, CaptureConfig(open_timeout_s=limit_s), MonotonicClock(), network)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("receive")]

    def test_nobody_there(self) -> None:
        self.fails("zmq+tcp://127.0.0.1:9", r"gave no sign of life within 0\.3 s; start the sender, check the address$")

    def test_somebody_who_sends_nothing(self) -> None:
        with Sender(None) as sender:
            self.fails(f"zmq+{sender.endpoint}", r"is there, but sent no frame within 0\.3 s; .* on a PUB socket\?")
        with Sender(None, kind=zmq.PUSH) as sender:
            self.fails(f"zmq+{sender.endpoint}?pull", r"on a PUSH socket\?")

    def test_somebody_who_sends_other_things(self) -> None:
        with Sender([msgspec.msgpack.encode({"v": 9}), b""]) as sender:
            self.fails(f"zmq+{sender.endpoint}", r"sends nothing that can be read: its header is wrong: .*; docs/")

    @pytest.mark.parametrize("address", ["zmq+tcp://nowhere", "zmq+tcp://host:port", "zmq+udp://h:1", "zmq+ipc://"])
    def test_an_address_that_is_none(self, address: str) -> None:
        self.fails(address, "is no address for a socket; write tcp://HOST:PORT or ipc://PATH")

    def test_an_address_that_zeromq_refuses(self) -> None:
        self.fails("zmq+tcp://no host:5", "cannot connect to tcp://no host:5", NetworkConfig(plain_tcp=True), 5.0)

    def test_another_machine_without_keys(self) -> None:
        self.fails("zmq+tcp://192.0.2.1:5558", "leaves this machine without keys")

    def test_a_beginning(self) -> None:
        with pytest.raises(ConfigError, match=r"capture\.start_s = 2 is for files, and zmq\+tcp:.* is live"):
            open_source("zmq+tcp://127.0.0.1:9", CaptureConfig(start_s=2.0), FakeClock())

    def test_a_work_size_beyond_measure(self) -> None:
        with pytest.raises(ConfigError, match=r"capture\.size"):
            open_source("zmq+tcp://127.0.0.1:9", CaptureConfig(size="99999x1"), FakeClock())


class TestKeys:
    def server_pair(self, folder: Path) -> tuple[bytes, bytes]:
        public, secret = zmq.auth.load_certificate(folder / "server" / "server.key_secret")
        assert secret is not None
        return secret, public

    def test_with_the_right_keys_frames_come(self, tmp_path: Path) -> None:
        make_keys(tmp_path / "keys")
        network = NetworkConfig(keys=str(tmp_path / "keys"))
        with (
            Sender(message(), curve=self.server_pair(tmp_path / "keys")) as sender,
            opened(sender, network=network, max_frames=2) as source,
        ):
            assert len(list(frames_of(source))) == 2

    def test_without_keys_or_with_others_nothing_is_seen(self, tmp_path: Path) -> None:
        for name in ("keys", "others"):
            make_keys(tmp_path / name)
        with Sender(message(), curve=self.server_pair(tmp_path / "keys")) as sender:
            with pytest.raises(
                SourceError, match=r"refuses this end: its keys and those of --keys do not fit|no sign of"
            ):
                opened(sender, open_timeout_s=2.0)
            with pytest.raises(SourceError, match=r"or has other keys|do not fit together"):
                opened(sender, network=NetworkConfig(keys=str(tmp_path / "others")), open_timeout_s=0.5)


def test_the_documented_sender_is_understood(tmp_path: Path) -> None:
    """The example of docs/sources.md runs as it stands, but for its clip, its port and its pace."""
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
            frames = [item for item in frames_of(source) if isinstance(item, SourceFrame)]
        assert len(frames) == 3
        red = frames[-1].planes.planes[0].astype(np.int64)
        assert (red[20, :, 0] - red[20, :, 2]).max() > 100
    finally:
        _, error = sender.communicate(timeout=LIMIT_S)
    assert (sender.returncode, error) == (0, b"")
