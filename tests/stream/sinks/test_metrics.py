"""The HTTP server serves whoever asks; Prometheus reads what happened, and the health follows the run."""

from __future__ import annotations

import errno
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, RemoteDisconnected
from socketserver import TCPServer

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from arr_coc.types import NS_PER_S
from stream.config import Config, OutputConfig
from stream.errors import OutputError
from stream.events import Cut, Event, Outage, Restarted, Skipped, Started
from stream.monitor.health import RunMonitor
from stream.sinks import metrics_server
from stream.sinks.metrics import MetricsSink
from stream.sinks.metrics_server import HttpServer, Page
from tests.support.clock import FakeClock
from tests.support.events import answer, frame, look, shadow, summary
from tests.support.network import LIMIT_S, free_port, until
from tests.support.runs import WatchedRun


def pages(path: str) -> Page | None:
    if path == "/broken":
        raise KeyError("oops")
    return Page(503, "text/plain", path.encode()) if path == "/sick" else Page(200, "text/plain", b"hello")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with closing(HttpServer("127.0.0.1", 0, lambda path: None if path == "/" else pages(path))) as made:
        yield made


def fetched(server: HttpServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request("http://{}:{}{}".format(*server.address, path), method=method)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_without_descriptors_the_server_waits(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def get_request(self: HttpServer) -> tuple[socket.socket, object]:
        if len(waits) < 3:
            raise OSError(errno.EMFILE, "too many open files")
        return accept(self)

    accept = TCPServer.get_request
    monkeypatch.setattr(TCPServer, "get_request", get_request)
    monkeypatch.setattr("stream.sinks.metrics_server.time.sleep", waits.append)
    assert fetched(server, "/well") == (200, b"hello")
    assert waits == [metrics_server.POLL_S] * 3


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:9109", 200),
        ("[::1]:9109", 200),
        (None, 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:9109", 421),
        ("", 421),
    ],
)
def test_a_foreign_host_is_refused(server: HttpServer, host: str | None, status: int) -> None:
    connection = HTTPConnection(*server.address, timeout=LIMIT_S)
    connection.putrequest("GET", "/well", skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    with closing(connection), connection.getresponse() as reply:
        assert reply.status == status
        assert (reply.read() == b"hello") == (status == 200)


def test_a_server_for_other_machines_has_any_name() -> None:
    with closing(HttpServer("0.0.0.0", 0, pages)) as server:
        connection = HTTPConnection("127.0.0.1", server.address[1], timeout=LIMIT_S)
        connection.request("GET", "/well", headers={"Host": "metrics.example"})
        with closing(connection), connection.getresponse() as reply:
            assert reply.status == 200


def test_pages_are_served_with_their_status(server: HttpServer) -> None:
    assert fetched(server, "/well?why=not") == (200, b"hello")
    assert fetched(server, "/sick") == (503, b"/sick")
    assert fetched(server, "/well", "HEAD") == (200, b"")
    assert fetched(server, "/")[0] == 404
    assert fetched(server, "/well", "POST")[0] == 501


def test_a_page_that_cannot_be_made_closes_only_its_connection(server: HttpServer) -> None:
    with pytest.raises(RemoteDisconnected):
        fetched(server, "/broken")
    assert fetched(server, "/well")[0] == 200


def _threads(name: str) -> int:
    return sum(name in thread.name for thread in threading.enumerate())


def test_where_no_thread_can_be_started_only_that_client_has_to_go(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Exhausted(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr("socketserver.threading.Thread", Exhausted)
    with pytest.raises((urllib.error.URLError, ConnectionError, RemoteDisconnected)):
        fetched(server, "/well")
    monkeypatch.undo()
    assert fetched(server, "/well") == (200, b"hello")
    server.close()
    assert capfd.readouterr().err == ""


def test_clients_that_dawdle_keep_nobody_out(server: HttpServer) -> None:
    with ExitStack() as stack:
        for _ in range(3 * metrics_server.CONNECTIONS_MAX):
            client = stack.enter_context(closing(socket.create_connection(server.address, timeout=LIMIT_S)))
            client.sendall(b"GET /well HTT")
        assert fetched(server, "/well")[0] == 200
        until(lambda: _threads("process_request_thread") <= metrics_server.CONNECTIONS_MAX)
        server.close()
    server.close()
    assert not _threads("metrics")


@pytest.mark.parametrize("nonsense", [b"\0" * 100, b"GET\r\n\r\n", b"x" * 70_000 + b"\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_no_request_harms_nobody(server: HttpServer, nonsense: bytes) -> None:
    with closing(socket.create_connection(server.address, timeout=LIMIT_S)) as client:
        client.sendall(nonsense)
    assert fetched(server, "/well")[0] == 200


def test_a_port_that_cannot_be_had_is_said_in_one_line(server: HttpServer) -> None:
    host, port = server.address
    for address, reason in [
        ((host, port), f"cannot serve metrics at {host}:{port}: another program uses that port"),
        (("203.0.113.9", 9109), "this machine has no such address"),
        ((host, 70_000), "it is not a valid port"),
        (("127.0.0.1.9.9.9", 9109), "this machine has no such address"),
        (("::1%nowhere", 9109), "this machine has no such address"),
    ]:
        with pytest.raises(OutputError, match=reason):
            HttpServer(*address, pages)


SECRET_SOURCE = "rtsp://user:secret@camera/stream"


class Served:
    """A sink, its monitor and the run's statistics, as a run would feed them."""

    def __init__(self) -> None:
        self.clock = FakeClock(NS_PER_S)
        config = Config(source=SECRET_SOURCE, output=OutputConfig(metrics_port=free_port()))
        self.monitor = RunMonitor(config, self.clock)
        self.run = WatchedRun(self.clock)
        self.monitor.follow(self.run)
        self.sink = MetricsSink(config, self.monitor)

    def take(self, *events: Event) -> None:
        for event in events:
            self.run.statistics.add(event)
            self.monitor.add(event)
            self.sink.write(event)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen("http://{}:{}{}".format(*self.sink.address, path), timeout=LIMIT_S) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def samples(self) -> dict[str, float]:
        status, text = self.get("/metrics")
        assert status == 200
        assert "secret" not in text
        return {
            sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def health(self, path: str = "/healthz") -> tuple[int, str, str | None]:
        status, text = self.get(path)
        health = json.loads(text)
        return status, health["status"], health["reason"]


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    with closing(made.sink):
        yield made


def test_metrics_count_what_happened(served: Served) -> None:
    assert served.samples()["arr_coc_frames_total"] == 0
    served.take(
        Started(source="camera", model="m", query="?", backend="cpu"),
        *(frame(index, 1 + index * 0.04, capture_ns=index, ready_ns=index + 15_000_000) for index in range(5)),
        Cut(frame_index=3, pts_s=1.1, score=0.9),
        Skipped(frame_index=4, pts_s=1.1, what="packets 1-3", reason="bad", count=3),
        answer(1.0, "hello"),
        Restarted(process="answers", cause="killed by SIGKILL", count=1),
        Outage(frame_index=4, pts_s=1.2, reason="timed out"),
    )
    samples = served.samples()
    expected = {
        "arr_coc_frames_total": 5,
        "arr_coc_answers_total": 1,
        "arr_coc_cuts_total": 1,
        "arr_coc_skipped_total": 3,
        "arr_coc_outages_total": 1,
        "arr_coc_outage_active": 1,
        "arr_coc_healthy": 0,
        "arr_coc_restarts_total{answers}": 1,
        "arr_coc_dropped_total{capture.replaced}": 2,
        "arr_coc_tokens": 64,
        "arr_coc_tiles": 240,
        "arr_coc_frame_latency_seconds_count": 5,
        "arr_coc_frame_latency_seconds_bucket{0.01}": 0,
        "arr_coc_frame_latency_seconds_bucket{0.02}": 5,
        "arr_coc_frame_latency_seconds_bucket{+Inf}": 5,
        "arr_coc_ttft_seconds_count": 1,
        "arr_coc_ttft_seconds_sum": 0.04,
    }
    assert {name: samples.get(name) for name in expected} == expected
    assert samples["arr_coc_frame_latency_seconds_sum"] == pytest.approx(0.075)
    assert samples["arr_coc_resident_memory_bytes{frames}"] > 2**20
    assert "arr_coc_resident_memory_bytes{answers}" not in samples


def test_looks_are_counted_and_what_holds_is_reported(served: Served) -> None:
    assert "arr_coc_watched_for" not in served.samples()
    served.take(look(0.5, holds="no"), look(1.0, holds="yes"))
    samples = served.samples()
    assert (samples["arr_coc_look_seconds_count"], samples["arr_coc_look_seconds_sum"]) == (2, 0.12)
    assert samples["arr_coc_watched_for"] == 1
    served.take(look(2.0, holds="no"))
    assert served.samples()["arr_coc_watched_for"] == 0


def test_jitter_is_reported_of_a_source_with_a_schedule(served: Served) -> None:
    served.take(*(frame(index, 0.5 + index * 0.04) for index in range(5)))
    samples = served.samples()
    assert samples["arr_coc_jitter_interval_std_seconds"] == pytest.approx(0, abs=1e-6)
    assert samples["arr_coc_jitter_interarrival_seconds"] == pytest.approx(0, abs=1e-6)
    assert samples["arr_coc_deadline_misses_total"] == 0


def test_target_and_budget_are_reported_where_a_latency_is_held(served: Served) -> None:
    served.take(answer(1.0, "a"))
    assert served.samples().keys().isdisjoint({"arr_coc_budget", "arr_coc_ttft_target_seconds"})
    served.take(replace(answer(2.0, "b"), target_ms=500.0, budget=212))
    samples = served.samples()
    assert (samples["arr_coc_budget"], samples["arr_coc_ttft_target_seconds"]) == (212, 0.5)
    assert samples["arr_coc_ttft_p95_seconds"] == pytest.approx(0.04)


def test_agreement_with_all_tokens_is_reported(served: Served) -> None:
    served.take(shadow(1.0))
    samples = served.samples()
    assert (samples["arr_coc_shadow_checks_total"], samples["arr_coc_shadow_same_total"]) == (1, 0)
    assert samples["arr_coc_shadow_words_share"] == pytest.approx(0.8)


def test_health_follows_the_run(served: Served) -> None:
    assert served.health() == (200, "loading", None)
    assert served.health("/readyz") == (503, "loading", None)
    served.take(frame(0, 0.0))
    assert served.health() == (200, "ok", None)
    assert served.health("/readyz") == (503, "ok", None)
    served.take(answer(0.0, "hello"))
    assert served.health("/readyz") == (200, "ok", None)
    served.clock.advance(6 * NS_PER_S)
    assert served.health() == (503, "stalled", "no frame for 6.0 s")
    served.take(Outage(frame_index=0, pts_s=0.0, reason="timed out"))
    assert served.health() == (503, "outage", "timed out")
    assert served.health("/readyz") == (503, "outage", "timed out")
    served.take(Outage(frame_index=0, pts_s=0.0, reason="timed out", lasted_s=6.0, attempts=2), frame(1, 7.0))
    assert served.health() == (200, "ok", None)
    served.take(Restarted(process="answers", cause="killed by SIGKILL", count=1), frame(2, 7.1))
    assert served.health() == (503, "restarting", "answers: killed by SIGKILL")
    served.take(answer(7.1, "again"))
    assert served.health() == (200, "ok", None)
    served.take(summary(ended="interrupted"))
    assert served.health() == (503, "ended", "interrupted")


def test_elsewhere_is_nothing(served: Served) -> None:
    status, text = served.get("/")
    assert status == 404
    assert "/metrics" in text
