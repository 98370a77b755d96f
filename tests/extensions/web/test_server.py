"""The served page without a browser: who gets in, the messages of a viewer, and that no viewer can block it."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import ssl
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from stream.control import Ask
from stream.errors import OutputError
from stream.events import AnswerDeltaEvent, Cut, Explanation, Outage
from stream.extensions.web import application, connection, server
from stream.extensions.web.application import VIEWERS_MAX
from stream.extensions.web.viewer import CREDITS, MESSAGES_A_SECOND
from tests.support.events import answer, look, summary
from tests.support.guards import TimeUp
from tests.support.network import LIMIT_S, until
from tests.support.pictures import picture_fields
from tests.support.tls import make_certificate
from tests.support.web import COLS, REGIONS, ROWS, ServedPage, ask, closing_code, served, viewing


def test_the_page_comes_with_a_strict_policy_and_an_etag(run: ServedPage) -> None:
    status, headers, body = ask(run)
    assert status == 200
    assert b"<title>ARR-COC Stream</title>" in body
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert ask(run, If_None_Match=headers["etag"])[0] == 304


def files_of(page: str, *, at_once: bool = False) -> set[Path]:
    """A page and everything that it loads, recursively; `at_once` without modules that wait until they are needed."""
    paths, left = set(), {application.PAGE / page}
    later = r"(?<!import\()" if at_once else ""
    while left:
        file = left.pop()
        paths.add(file)
        if file.suffix in (".html", ".js"):
            names = re.findall(later + r"""["'](?:/page/|\./)([\w.-]+)["']""", file.read_text(encoding="utf-8"))
            left |= {application.PAGE / name for name in names} - paths
    return paths


def test_each_page_is_small_and_names_no_other_host() -> None:
    pages = sorted(file.name for file in application.PAGE.glob("*.html"))
    for page in pages:
        assert sum(file.stat().st_size for file in files_of(page, at_once=True)) <= 130_000, page
    files = sorted(application.PAGE.iterdir())
    assert set(files) == set().union(*map(files_of, pages))
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "https://" not in text, file
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), file


@pytest.mark.parametrize("path", ["/page/../live.html", "/page/%2e%2e/__init__.py", "/secret", "/page/"])
def test_nothing_else_is_served(run: ServedPage, path: str) -> None:
    assert ask(run, path)[0] in (404, 405)


def test_without_a_compare_page_it_shows_how_to_get_it(run: ServedPage) -> None:
    status, _, body = ask(run, "/compare")
    assert status == 404
    assert b"run_stream.py web 8090" in body


def test_a_file_s_path_stays_on_its_machine(run: ServedPage) -> None:
    run.run.source_info = replace(run.run.source_info, name="/srv/films/lesson.mp4", live=False)
    run.hub.publish_status()
    with viewing(run) as viewer:
        status = viewer.next("status")
        assert (status["source"], status["live"]) == ("lesson.mp4", False)


def test_a_foreign_host_is_refused(run: ServedPage) -> None:
    assert ask(run, Host="evil.example")[0] == 421
    with pytest.raises(InvalidStatus):
        connect(f"ws://127.0.0.1:{run.port}/live", additional_headers={"Host": "evil.example"})


@pytest.mark.parametrize("origin", ["http://evil.example", "https://127.0.0.1", "null", "http://["])
def test_a_foreign_origin_is_refused(run: ServedPage, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused, viewing(run, origin=origin):
        pass
    assert refused.value.response.status_code == 403
    with viewing(run, origin=f"http://127.0.0.1:{run.port}") as viewer:
        assert viewer.next("hello")["control"] is True


def test_a_new_viewer_gets_the_state_and_the_history_first(run: ServedPage) -> None:
    run.emit(answer(1.0, "a red circle"))
    run.emit(Cut(frame_index=3, pts_s=1.5, score=0.9))
    run.emit(look(2.0))
    run.emit(AnswerDeltaEvent(answer=1, text="a blue ", pts_s=2.0))
    run.emit(AnswerDeltaEvent(answer=1, text="square", pts_s=2.0))
    with viewing(run) as late:
        assert late.next("hello")["shapes"][1] == [1, 1]
        assert late.next("status")["query"] == "What?"
        assert late.next("look")["holds"] == "yes"
        assert [event["topic"] for event in late.next("history")["events"]] == ["answer", "cut"]
        assert late.next("text")["text"] == "a blue square"
        assert late.next("viewers")["count"] == 1


def test_events_reach_every_viewer_and_reasons_too(run: ServedPage) -> None:
    with viewing(run) as first, viewing(run) as second:
        for viewer in (first, second):
            viewer.next("history")
        run.emit(answer(1.0, "hello \ud800 \u202e"))
        run.emit(Explanation(frame_index=1, pts_s=1.0, strategy="mixed", weights={"information": 1.0}, tokens=[]))
        for viewer in (first, second):
            assert viewer.next("answer")["text"].startswith("hello ")
            assert viewer.next("why")["weights"] == {"information": 1.0}


def test_a_picture_comes_with_the_map_of_its_frame(run: ServedPage) -> None:
    with viewing(run) as viewer:
        fields = picture_fields(viewer.picture())
    assert (fields["width"], fields["height"], fields["codec"]) == (512, 256, 0)
    assert (fields["map"].rows, fields["map"].cols) == (ROWS, COLS)
    assert fields["map"].regions == REGIONS.tobytes()
    assert fields["picture"].startswith(b"\xff\xd8")


def test_nothing_is_asked_for_without_viewers(run: ServedPage) -> None:
    assert run.pictures.requests == []
    with viewing(run) as viewer:
        for _ in range(5):
            viewer.picture()
    until(lambda: run.hub.viewers == 0)
    before = len(run.pictures.requests)
    with viewing(run):
        until(lambda: run.hub.viewers == 1)
    until(lambda: run.hub.viewers == 0)
    assert before + 2 >= len(run.pictures.requests)


def test_each_viewer_has_its_own_width(run: ServedPage) -> None:
    with viewing(run) as small, viewing(run) as large:
        small.send(width=320)
        widths = set()
        while (320, 1280) not in run.pictures.requests:
            small.picture()
            widths.add(picture_fields(large.picture())["width"])
        while picture_fields(small.picture())["width"] != 256:
            pass
        widths.add(picture_fields(large.picture())["width"])
        assert widths == {512}


def test_a_viewer_that_confirms_nothing_gets_two_pictures_and_all_texts(run: ServedPage) -> None:
    with viewing(run) as stalled, viewing(run) as quick:
        for _ in range(10):
            quick.picture()
        run.emit(answer(1.0, "still here"))
        assert stalled.next("answer")["text"] == "still here"
        assert len(stalled.pictures) <= 2


def open_deaf(page: ServedPage, stack: ExitStack) -> None:
    """Connect a viewer that asks for the socket and reads nothing from it."""
    deaf = stack.enter_context(socket.create_connection(("127.0.0.1", page.port)))
    deaf.sendall(
        b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )


def test_a_viewer_that_never_reads_does_not_block_others(run: ServedPage) -> None:
    with ExitStack() as stack, viewing(run) as other:
        open_deaf(run, stack)
        until(lambda: run.hub.viewers == 2)
        for number in range(2000):
            run.emit(answer(float(number), "x" * 5000))
            if number % 20 == 0:
                other.next("answer")
        run.emit(summary())
        assert other.next("summary")["topic"] == "summary"
    until(lambda: run.hub.viewers == 0)


def test_viewers_that_never_read_lose_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.extensions.web.server.PING_EVERY_S", 0.01)
    monkeypatch.setattr("stream.extensions.web.server.PONG_LIMIT_S", 0.01)
    most = []
    with served() as page, ExitStack() as stack:
        add = page.hub.add
        monkeypatch.setattr(page.hub, "add", lambda *wake: (most.append(1), add(*wake))[1])
        for _ in range(VIEWERS_MAX):
            open_deaf(page, stack)
        until(lambda: len(most) == VIEWERS_MAX)
        until(lambda: page.hub.viewers == 0)


def test_a_viewer_that_never_reads_keeps_no_connection_with_a_full_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SEND_LIMIT_S", 0.01)
    monkeypatch.setattr(connection, "CLOSE_LIMIT_S", 0.01)
    time_up = TimeUp(connections=100)
    with served(guard=time_up.guard) as page, ExitStack() as stack:
        open_deaf(page, stack)
        until(lambda: page.hub.viewers == 1)
        while page.hub.viewers:
            page.emit(answer(0.0, "x" * 5000))
        time_up.until(lambda: page.server.connections == 0)


def test_a_question_reaches_the_run_and_all_viewers_hear_it(run: ServedPage) -> None:
    with viewing(run) as first, viewing(run) as second:
        first.send(ask="who is there?")
        assert second.next("asked")["query"] == "who is there?"
    assert run.run.commands == [Ask("who is there?")]


CUT_OFF = (connection.REFUSED, None)
"""If the page closes while messages of the viewer are on their way, TCP may lose the code."""


def test_a_flood_of_questions_ends_the_connection_and_asks_few(run: ServedPage) -> None:
    with viewing(run) as viewer:
        with suppress(ConnectionClosed):
            for number in range(10_000):
                viewer.send(ask=f"{number}?")
        assert closing_code(viewer.socket) in CUT_OFF
    assert 1 <= len(run.run.commands) < MESSAGES_A_SECOND
    with viewing(run) as viewer:
        viewer.picture()


def test_an_empty_question_is_refused_with_its_reason(run: ServedPage) -> None:
    with viewing(run) as viewer:
        viewer.send(ask="  ")
        assert viewer.next("refused")["error"] == "the question is empty"
        viewer.send(width=3)
        assert "width is one of" in viewer.next("refused")["error"]


def test_a_viewer_asks_for_the_time(run: ServedPage) -> None:
    with viewing(run) as viewer:
        before_ns = time.time_ns()
        viewer.send(clock=7)
        reply = viewer.next("clock")
        assert reply["clock"] == 7
        assert before_ns <= reply["unix_ns"] <= time.time_ns()
        viewer.send(clock=-1)
        assert "clock is from 0" in viewer.next("refused")["error"]


def test_nonsense_ends_the_connection(run: ServedPage) -> None:
    with viewing(run) as viewer:
        with suppress(ConnectionClosed):
            for _ in range(50):
                viewer.socket.send("nonsense")
        assert closing_code(viewer.socket) in CUT_OFF


def test_a_page_that_only_shows_takes_no_question() -> None:
    with served(web__control=False) as page, viewing(page) as viewer:
        assert viewer.next("hello")["control"] is False
        viewer.send(ask="may I?")
        assert "takes no questions" in viewer.next("refused")["error"]
        assert page.run.commands == []


def test_viewers_are_limited_and_one_more_is_refused(run: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.extensions.web.application.VIEWERS_MAX", 3)
    assert VIEWERS_MAX > 3
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(viewing(run)).next("hello")
        with viewing(run) as fourth:
            assert closing_code(fourth.socket) == connection.CROWDED
    until(lambda: run.hub.viewers == 0)
    with viewing(run) as viewer:
        viewer.next("hello")


def test_connections_that_ask_for_nothing_are_closed() -> None:
    time_up = TimeUp(connections=100)
    with served(guard=time_up.guard) as page, ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", page.port))) for _ in range(50)]
        for connection in silent:
            assert time_up.received(connection) == b""
        with viewing(page) as viewer:
            viewer.picture()


def test_a_connection_that_stops_within_its_second_request_is_closed() -> None:
    time_up = TimeUp(connections=100)
    with served(guard=time_up.guard) as page, socket.create_connection(("127.0.0.1", page.port)) as client:
        request = f"HEAD / HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n"
        client.sendall(f"{request}\r\n{request}".encode())
        assert client.recv(1) == b"H"  # the first one is answered
        assert time_up.received(client).count(b"TTP/1.1 200") == 1


@pytest.mark.parametrize("tls", [False, True])
def test_too_many_connections_leave_room_for_viewers(certificate: tuple[str, str], tls: bool) -> None:
    options: dict[str, Any] = {"web__cert": certificate[0], "web__key": certificate[1]} if tls else {}
    trust: dict[str, Any] = {"ssl": ssl.create_default_context(cafile=certificate[0])} if tls else {}
    guard = TimeUp(connections=8).guard
    with served(guard=guard, **options) as page, ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", page.port), LIMIT_S))
        with viewing(page, open_timeout=LIMIT_S, **trust) as viewer:
            viewer.picture()
            assert len(guard.connections) <= 8


class ExhaustedListener(socket.socket):
    """Listener of a process without descriptors, until `descriptors` is set."""

    descriptors = threading.Event()

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.descriptors.is_set():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_without_descriptors_the_page_waits(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bound = server.open_listener

    def exhausted(*address: Any) -> socket.socket:
        listener = ExhaustedListener(fileno=bound(*address).detach())
        listener.setblocking(False)
        return listener

    monkeypatch.setattr(server, "open_listener", exhausted)
    monkeypatch.setattr("stream.http.server.ACCEPT_RETRY_S", 0.01)
    monkeypatch.setattr(ExhaustedListener, "descriptors", threading.Event())
    with served() as page:
        until(lambda: len(caplog.messages) > 3)
        assert set(caplog.messages) == {"the web page accepts no connections for now: Too many open files"}
        ExhaustedListener.descriptors.set()
        with viewing(page) as viewer:
            viewer.picture()


def test_the_token_opens_the_page_and_goes_into_a_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "WRONG_TOKEN_S", 0.0)
    with served(web__token="a long secret") as page:
        status, _, body = ask(page)
        assert status == 401
        assert b"asks for a token" in body
        assert ask(page, "/?token=wrong")[0] == 401
        assert ask(page, "/page/style.css")[0] == 200
        with pytest.raises(InvalidStatus), viewing(page):
            pass
        status, headers, _ = ask(page, "/?token=a+long+secret")
        assert (status, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        pair = cookie.partition(";")[0]
        assert ask(page, cookie=pair)[0] == 200
        with viewing(page, additional_headers={"Cookie": pair}) as viewer:
            viewer.next("hello")
        with viewing(page, additional_headers={"Authorization": "Bearer a long secret"}) as viewer:
            viewer.next("hello")


def test_a_port_in_use_is_one_line() -> None:
    with served() as page, pytest.raises(OutputError, match="the port is in use; name another one"):
        ServedPage(web__address=f"127.0.0.1:{page.port}")


def test_a_host_that_is_not_here_is_one_line() -> None:
    with pytest.raises(OutputError, match=r"cannot serve the web page at 203\.0\.113\.7:0"):
        ServedPage(web__address="203.0.113.7:0", web__token="long enough")


def test_a_certificate_that_is_none_is_one_line(tmp_path: Path) -> None:
    nonsense = tmp_path / "cert.pem"
    nonsense.write_text("nonsense")
    with pytest.raises(OutputError, match="cannot be used"):
        ServedPage(web__cert=str(nonsense), web__key=str(nonsense))


def test_with_a_certificate_the_page_is_served_over_tls(certificate: tuple[str, str]) -> None:
    with served(web__cert=certificate[0], web__key=certificate[1]) as page:
        trust = ssl.create_default_context(cafile=certificate[0])
        with viewing(page, ssl=trust) as viewer:
            assert viewer.next("hello")["topic"] == "hello"


def test_a_viewer_that_has_confirmed_nothing_gets_as_many_pictures_as_it_has_credits(run: ServedPage) -> None:
    with viewing(run) as viewer:
        while len(viewer.pictures) < CREDITS:
            viewer.take()


def test_an_outage_ends_requests_that_nothing_answers(run: ServedPage) -> None:
    with viewing(run) as viewer:
        viewer.picture()
        run.pictures.silent = True
        viewer.send(ok=2)  # however many came before, it is ready for more
        run.emit(Outage(frame_index=1, pts_s=1.0, reason="unplugged"))
        assert viewer.next("outage")["reason"] == "unplugged"
        before = len(run.pictures.requests)
        until(lambda: len(run.pictures.requests) >= before + 3)  # it keeps asking, for the source may be back
        run.pictures.silent = False
        viewer.pictures.clear()
        assert json.dumps(picture_fields(viewer.picture())["frame_index"])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"))
