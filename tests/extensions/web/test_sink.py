"""Web sink: a session serves its page from the beginning, and prints its address."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from websockets.sync.client import connect

from stream.config import Config
from stream.errors import ConfigError, OutputError
from stream.events import Started
from stream.extensions.web.section import WebSection
from stream.extensions.web.sink import WebSink
from stream.monitor.health import RunMonitor
from tests.support.events import answer, frame, summary
from tests.support.sections import opened_sinks
from tests.support.web import PageClient, PagedRun


def opened(**web: Any) -> tuple[RunMonitor, WebSink]:
    config = Config(web=WebSection(**{"address": "127.0.0.1:0", **web}))
    monitor = RunMonitor(config)
    sinks = opened_sinks(config, monitor)
    assert isinstance(sinks[-1], WebSink)
    return monitor, sinks[-1]


def test_the_page_is_served_before_the_run_begins_and_its_address_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    monitor, sink = opened()
    try:
        match = re.search(r"web page at (http://127\.0\.0\.1:\d+/)\n", capsys.readouterr().err)
        assert match is not None
        with connect(match[1].replace("http", "ws") + "live", compression=None) as socket:
            viewer = PageClient(socket)
            viewer.next("hello")
            monitor.follow(PagedRun())  # type: ignore[arg-type]
            for event in (
                Started(source="camera", model="fake", query="What?", backend="cpu"),
                frame(0, 0.0),
                answer(0.0, "a cat"),
                summary(),
            ):
                monitor.add(event)
                sink.write(event)
            assert viewer.next("status")["model"] == "fake"
            assert viewer.next("answer")["text"] == "a cat"
            assert viewer.next("summary")["topic"] == "summary"
            assert "frame" not in {text["topic"] for text in viewer.texts}
    finally:
        sink.close()
        sink.close()


def test_a_token_that_was_made_is_in_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    _, sink = opened(token="auto")
    sink.close()
    assert re.search(r"/\?token=[\w-]{20,}\n", capsys.readouterr().err)


def test_a_live_view_that_takes_the_terminal_over_shows_the_address_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, sink = opened()
    before = capsys.readouterr().err
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    for _ in range(3):
        sink.write(frame(0, 0.0))
    sink.close()
    assert stderr.getvalue() == before
    assert before.startswith("web page at http://127.0.0.1:")


def test_a_page_that_cannot_be_served_is_one_line() -> None:
    with pytest.raises(ConfigError, match="--web-token auto"):
        opened(address="0.0.0.0:0")
    with pytest.raises(OutputError, match="cannot serve the web page"):
        opened(address="203.0.113.7:0", token="long enough")
