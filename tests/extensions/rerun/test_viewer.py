"""A run in a Rerun viewer: events arrive, whatever happens to the viewer, and the run never waits for it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("rerun_cli", reason="no rerun-sdk, 700 MB: pip install 'arr-coc-stream[rerun]'")

from stream.errors import OutputError
from stream.events import AskedPicture, Started
from stream.extensions.rerun.address import ViewerAddress
from stream.extensions.rerun.viewer import EVENTS_MAX, RerunViewerSink, open_viewer
from tests.support import rerun as support
from tests.support.events import answer, frame
from tests.support.network import free_port, until

AT_ONCE = (0.01, 0.01)

STARTED = Started(source="camera", model="m", query="What?", backend="cpu")


def at(port: int) -> ViewerAddress:
    return ViewerAddress.of(f"127.0.0.1:{port}")


@pytest.fixture
def server() -> Iterator[support.RerunServer]:
    rerun_server = support.RerunServer()
    yield rerun_server
    rerun_server.kill()


def test_a_run_reaches_a_viewer(server: support.RerunServer, tmp_path: Path) -> None:
    server.start()
    with closing(RerunViewerSink(at(server.port), "camera", AT_ONCE)) as sink:
        for event in (STARTED, frame(3, 0.5), answer(0.5, "a cat", frame_index=3)):
            sink.write(event)
    rows = server.wait_for(tmp_path, "/text", "a cat")
    assert (rows["/text"][-1]["frame"], rows["/text"][-1]["media"]) == (3, 0.5)
    assert rows["/figures/tokens"][0]["scalars"] == [64.0]


def test_a_late_or_restarted_viewer_receives_the_newest_events(
    server: support.RerunServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(RerunViewerSink(at(server.port), "camera", AT_ONCE)) as sink:
        outputs: list[str] = []

        def heard(text: str) -> bool:
            outputs.append(capsys.readouterr().err)
            return text in "".join(outputs)

        sink.write(STARTED)
        until(lambda: heard("no program listens at this address; the run goes on"))
        server.start()
        until(lambda: heard("is there"))
        sink.write(answer(0.5, "first", frame_index=1))
        server.wait_for(tmp_path, "/text", "first")
        server.kill()
        outputs.clear()
        number = 2

        def spoken(text: str) -> bool:
            nonlocal number
            number += 1
            sink.write(answer(0.5, f"answer {number}", frame_index=number))
            return heard(text)

        until(lambda: spoken("it is gone; the run goes on"))
        server.start()
        until(lambda: spoken("is there"))
        sink.write(answer(9.0, "the last", frame_index=9))
        rows = server.wait_for(tmp_path, "/text", "the last")
        assert rows["/answer"][-1]["text"] == ["What?\n\nthe last"]
        assert "32×32 px" in str(rows["/frame/tokens"])


def test_a_run_does_not_wait_for_a_viewer_that_hangs() -> None:
    """The viewer accepts and never reads. Newer pictures replace older ones, and the sink still ends."""
    with socket.socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen()
        with closing(RerunViewerSink(at(hung.getsockname()[1]), "camera", AT_ONCE)) as sink:
            for number in range(2 * EVENTS_MAX):
                sink.write(AskedPicture(frame_index=number, pts_s=0.0, jpeg=bytes(1 << 16)))
                sink.write(answer(0.0, "a cat", frame_index=number))
            assert len(sink.outbox) <= EVENTS_MAX + 1
            assert sink.outbox.dropped > EVENTS_MAX


def test_without_a_display_no_viewer_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OutputError, match=r"there is no display; write -o FILE\.rrd"):
        open_viewer(at(free_port()))


def test_a_viewer_that_ends_at_once_is_reported_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", "127.0.0.1:99")
    with pytest.raises(OutputError, match=r"the Rerun viewer ended at once: ."):
        open_viewer(at(free_port()))


def test_a_viewer_that_never_listens_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def sleeper(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        started.append(popen(["sleep", "1000"], **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", sleeper)
    with pytest.raises(OutputError, match=r"did not open within 0\.1 s"):
        open_viewer(at(free_port()), limit_s=0.1)
    assert started[0].poll() is not None
