"""Server of a shared texture: viewers that stall, die or send nonsense delay nothing; its socket's file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.allocation.frame import FrameAllocation
from arr_coc.texture.store.base import TextureView
from stream.config import AllocateConfig, AnswerConfig, Config, PipelineConfig
from stream.errors import ConfigError, OutputError, TransportError
from stream.events import Answer, FrameMap, FrameReady, Notice
from stream.extensions.shared_texture import reader as reader_module
from stream.extensions.shared_texture import socket_file, writer
from stream.extensions.shared_texture.observer import NOT_SHARED, TextureSharer
from stream.extensions.shared_texture.reader import SharedTexture
from stream.extensions.shared_texture.section import SharedTextureSection
from stream.extensions.shared_texture.server import MOST_CLIENTS, TextureServer
from stream.extensions.shared_texture.writer import TextureWriter
from stream.runtime.frame_stages import run_in_threads
from tests.extensions.shared_texture.test_memory import map_of
from tests.support.network import LIMIT_S, until
from tests.support.video import PictureStream, make_video, moving_square, scenery

LOADER = "tests.support.answer_models:FakeAnswerModel"
FRAMES = 12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.sock"


@pytest.fixture
def server(path: Path) -> Iterator[TextureServer]:
    with closing(TextureServer(str(path), "camera")) as opened:
        yield opened


def connected(path: Path) -> socket.socket:
    """A viewer that reads nothing by itself."""
    viewer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    viewer.connect(str(path))
    return viewer


def killed_viewer(path: Path) -> None:
    """Let a process connect, and kill it."""
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(flush=True); input()"
    command = [sys.executable, "-S", "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as viewer:
        assert viewer.stdout is not None
        viewer.stdout.readline()
        viewer.kill()


def config_of(folder: Path, path: Path) -> Config:
    video = make_video(folder / "square.mp4", list(moving_square(FRAMES, 128, 96)), 10)
    return Config(
        source=str(video),
        allocate=AllocateConfig(budget=6),
        answer=AnswerConfig(every_s=0.3),
        pipeline=PipelineConfig(single_process=True),
        shared_texture=SharedTextureSection(socket=str(path)),
    )


@pytest.fixture
def first_viewers(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[Callable[[Path], object]]:
    """Functions that are called before the first frame of a run, with the path of its socket."""
    calls: list[Callable[[Path], object]] = []
    ask = TextureSharer.wants_frames.fget
    assert ask is not None

    def wants_frames(sharer: TextureSharer) -> bool:
        while calls:
            calls.pop(0)(path)
            until(lambda: ask(sharer))
        return ask(sharer)

    monkeypatch.setattr(TextureSharer, "wants_frames", property(wants_frames))
    return calls


def test_a_run_goes_on_beside_viewers_that_stall_and_die(
    path: Path, tmp_path: Path, first_viewers: list[Callable[[Path], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[int, npt.NDArray[np.uint8]] = {}
    write = TextureWriter.write

    def noting(self: TextureWriter, view: TextureView, frame_map: FrameMap) -> int:
        written[view.stamp.frame_index] = view.read(0).copy()
        return write(self, view, frame_map)

    monkeypatch.setattr(TextureWriter, "write", noting)
    readers: list[SharedTexture] = []
    stalled: list[socket.socket] = []
    first_viewers.append(lambda path: stalled.append(connected(path)))
    first_viewers.append(killed_viewer)
    first_viewers.append(lambda path: readers.append(SharedTexture.connect(path)))
    run = run_in_threads(config_of(tmp_path, path), model_loader=LOADER)
    frames: list[int] = []
    answers: list[str] = []
    shared: list[int] = []

    def read(reader: SharedTexture) -> None:
        frame = reader.update()
        if frame is not None:
            np.testing.assert_array_equal(frame.pixels, written[frame.frame_index])
            assert len(frame.regions) == 6
            shared.append(frame.frame_index)

    for event in run.run():
        if isinstance(event, FrameReady):
            frames.append(event.frame_index)
            read(readers[0])
        if isinstance(event, Answer):
            answers.append(event.text)
    assert frames == list(written) == list(range(FRAMES)), "none was dropped"
    (reader,) = readers
    while not reader.ended:
        read(reader)
    assert shared == sorted(set(shared))
    assert shared[-1] == FRAMES - 1
    assert reader.answer is not None
    assert reader.answer.text == answers[-1]
    assert not path.exists()
    reader.close()
    stalled[0].close()


def test_nothing_is_copied_without_a_viewer(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TextureSharer, view: TextureView, frame: FrameAllocation) -> None:
        raise AssertionError("no client is there to see it")

    monkeypatch.setattr(TextureSharer, "observe_frame", fail)
    run = run_in_threads(config_of(tmp_path, path), model_loader=LOADER)
    assert sum(isinstance(event, FrameReady) for event in run.run()) == FRAMES


def test_a_viewer_that_reads_nothing_keeps_no_lines_waiting(server: TextureServer, path: Path) -> None:
    stalled = connected(path)
    reader = SharedTexture.connect(path)
    text = "x" * 100_000
    for number in range(50):
        server.share_answer({"frame_index": number, "pts_s": 0.0, "query": "?", "text": text})
        until(lambda: reader.update() is None and reader.answer is not None)
    until(lambda: reader.update() is None and reader.answer is not None and reader.answer.frame_index == 49)
    stalled.settimeout(LIMIT_S)
    received = 0
    while b'"frame_index":49' not in (data := stalled.recv(1 << 16)):
        received += len(data)
    assert received < 30 * len(text), "the lines between were left out"
    stalled.close()
    reader.close()


def test_a_viewer_that_sends_much_is_not_listened_to(server: TextureServer, path: Path) -> None:
    loud = connected(path)
    for _ in range(20):
        loud.sendall(b"nonsense" * 10_000)
    loud.close()
    until(lambda: not server.has_clients)


def test_only_so_many_viewers_are_served(server: TextureServer, path: Path) -> None:
    viewers = [connected(path) for _ in range(MOST_CLIENTS + 1)]
    viewers[-1].settimeout(LIMIT_S)
    assert viewers[-1].recv(1) == b""
    for viewer in viewers:
        viewer.close()


def test_a_viewer_that_comes_later_is_shown_no_old_picture(server: TextureServer, path: Path) -> None:
    stream = PictureStream()
    view = stream.show(scenery(4, 6))
    shared = TextureWriter(view.grid)
    with SharedTexture.connect(path) as first:
        until(lambda: server.has_clients)
        server.share(shared, shared.write(view, map_of(view)))
        assert first.update(LIMIT_S) is not None
    until(lambda: not server.has_clients)
    server.share(shared, shared.write(view, map_of(view)))
    with SharedTexture.connect(path) as second:
        until(lambda: server.has_clients)
        server.share_answer({"frame_index": 0, "pts_s": 0.0, "query": "?", "text": "!"})
        until(lambda: second.update() is None and second.answer is not None)
        assert second.update() is None
        view = stream.show(scenery(4, 6, seed=1))
        server.share(shared, shared.write(view, map_of(view)))
        frame = second.update(LIMIT_S)
        assert frame is not None
        np.testing.assert_array_equal(frame.pixels, view.read(0))


def test_a_run_without_memory_to_share_says_so_and_goes_on(
    path: Path, tmp_path: Path, first_viewers: list[Callable[[Path], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(writer, "nameless_file", fail)
    viewers: list[socket.socket] = []
    first_viewers.append(lambda path: viewers.append(connected(path)))
    run = run_in_threads(config_of(tmp_path, path), model_loader=LOADER)
    events = list(run.run())
    viewers[0].close()
    assert sum(isinstance(event, FrameReady) for event in events) == FRAMES
    notices = [event.message for event in events if isinstance(event, Notice) and event.code == NOT_SHARED]
    assert notices == ["the picture is not shared any more: Cannot allocate memory"]


def test_a_socket_that_a_dead_run_left_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with closing(TextureServer(str(path), "camera")) as server:
        assert path.stat().st_mode & 0o777 == 0o600
        with SharedTexture.connect(path):
            until(lambda: server.has_clients)
    assert not path.exists()


@pytest.mark.parametrize("place", ["live", "file", "no folder", "too long", "not writable"])
def test_a_socket_that_cannot_be_had_is_refused_before_the_run(
    place: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("precious")
    paths = {"file": tmp_path / "file", "no folder": tmp_path / "none" / "a.sock", "too long": tmp_path / ("a" * 120)}
    problems = {
        "live": "another program uses it",
        "file": "there is something else at that path; name another",
        "no folder": "there is no such folder; make it first",
        "too long": "the path is too long for a socket; name a shorter one",
        "not writable": "this user may not; name a port above 1023, or another path",
    }
    if place == "not writable":  # which the tests' user may write nevertheless
        monkeypatch.setattr(socket_file.os, "access", lambda path, mode: False)
    config = Config(shared_texture=SharedTextureSection(socket=str(paths.get(place, path))))
    with socket.socket(socket.AF_UNIX) as live:
        if place == "live":
            live.bind(str(path))
            live.listen()
        with pytest.raises(OutputError, match=f"cannot open .*: {problems[place]}"):
            socket_file.check(config)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_socket_that_cannot_be_bound_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str, mode: int) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "chmod", fail)
    with pytest.raises(OutputError, match="Read-only file system; name another path"):
        TextureServer(str(path), "camera")


def test_a_system_without_such_sockets_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "send_fds")
    with pytest.raises(ConfigError, match="needs Linux or macOS; leave it out"):
        socket_file.check_path(str(path))


def test_no_run_at_a_socket_is_an_error_with_the_remedy(path: Path) -> None:
    with pytest.raises(TransportError, match=r"no texture at .*a.sock \(No such file .*\); start a run: watch"):
        SharedTexture.connect(path)


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"HTTP/1.1 400\n", "is no run that shares its texture"),
        (b'{"answer": {"words": 1}}\n', "is no run that shares its texture"),
        (b'{"memory": {"source": "a"}}\n', "is no run that shares its texture"),
        (b"x" * 101, "sends lines without end"),
    ],
)
def test_another_program_at_the_socket_is_refused(sent: bytes, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "LONGEST_LINE", 100)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with theirs, closing(SharedTexture(ours)) as reader:
        theirs.sendall(sent)
        with pytest.raises(TransportError, match=problem):
            reader.update()


def test_each_of_several_cameras_has_its_own_socket() -> None:
    section = SharedTextureSection(socket="/run/ar.sock")
    assert section.for_camera("front door").socket == "/run/ar-front_door.sock"
    assert SharedTextureSection().for_camera("door").socket is None
