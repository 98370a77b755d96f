"""Traces of answers reach a real receiver; without a receiver a run loses only its traces."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from stream.config import AnswerConfig, Config
from stream.events import Answer, AnswerTiming, AnswerUnchanged, Started
from stream.extensions.otlp.section import OtlpSection
from stream.extensions.otlp.sink import QUEUE_SPANS, OtlpSink
from tests.stream.runtime.test_pipeline import configured, run
from tests.support.collector import collecting
from tests.support.events import answer, frame
from tests.support.network import free_port, until
from tests.support.sections import opened_sinks
from tests.support.video import make_video, moving_square

PARTS = ["capture", "texture", "allocate", "wait for a turn", "encode", "prefill", "decode"]

TIMING = AnswerTiming(encode_ms=10, prefill_ms=20, decode_ms=30, ttft_ms=75, total_ms=100, turn_ms=12, sent_ms=35)

AT_ONCE_MS = 10.0


def sink(url: str, *, text: bool = False) -> OtlpSink:
    config = Config(source="rtsp://me:secret@camera/x", otlp=OtlpSection(url=url, text=text))
    return OtlpSink(config, AT_ONCE_MS)


def feed(to: OtlpSink, number: int) -> None:
    """Write a frame captured a second ago and its answer; every second answer is without news."""
    captured_ns = time.monotonic_ns() - 1_000_000_000
    to.write(frame(number, 0.0, capture_ns=captured_ns, ready_ns=captured_ns + 20_000_000))
    new = answer(0.0, "a cat", frame_index=number, timing=TIMING)
    to.write(AnswerUnchanged(**structs.asdict(new), since_s=0.0) if number % 2 else new)


def test_a_trace_of_each_answer_arrives() -> None:
    with collecting() as collector:
        with closing(sink(collector.url)) as sending:
            sending.write(Started(source="camera", model="tiny", query="What?", backend="cpu"))
            for number in range(3):
                feed(sending, number)
        roots = collector.roots()
    assert collector.paths == {"/v1/traces"}
    assert len({root.trace for root in roots}) == 3
    for root in roots:
        assert [child.name for child in collector.children(root)] == PARTS
    root = roots[0]
    assert root.name == "chat tiny"
    assert abs(root.start_ns - time.time_ns()) < 3600 * 10**9
    assert (root.end_ns - root.start_ns, root.events["first text"] - root.start_ns) == (100_000_000, 75_000_000)
    attributes = root.attributes
    assert (attributes["gen_ai.operation.name"], attributes["gen_ai.request.model"]) == ("chat", "tiny")
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (64, 5)
    assert attributes["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.04)
    assert (attributes["arr_coc.trigger"], attributes["arr_coc.turn_ms"], attributes["arr_coc.tiles"]) == (
        "every",
        12.0,
        240,
    )
    assert root.resource["service.name"] == "arr-coc-stream"
    assert root.resource["arr_coc.source"] == "rtsp://***@camera/x"
    assert "a cat" not in str(collector.spans)


def test_texts_are_sent_only_on_request() -> None:
    with collecting() as collector:
        with closing(sink(collector.url, text=True)) as sending:
            feed(sending, 0)
        (root,) = collector.roots()
    assert json.loads(root.attributes["gen_ai.input.messages"])[0]["parts"][0]["content"] == "What?"
    assert json.loads(root.attributes["gen_ai.output.messages"])[0]["role"] == "assistant"


def test_a_run_is_traced_from_capture_to_its_last_word(tmp_path: Path) -> None:
    video = str(make_video(tmp_path / "a.mp4", list(moving_square(12, 192, 128)), 10))
    with collecting() as collector:
        otlp = OtlpSection(url=collector.url)
        result = run(configured(video, answer=AnswerConfig(every_s=0.5), otlp=otlp))
        sinks = opened_sinks(Config(source=video, otlp=otlp))
        for event in result.events:
            for traces in sinks:
                traces.write(event)
        for traces in sinks:
            traces.close()
            traces.close()
        roots = collector.roots()
    answers = result.of(Answer)
    assert [root.attributes["arr_coc.frame_index"] for root in roots] == [answer.frame_index for answer in answers]
    for root, point in zip(roots, answers, strict=True):
        assert point.timing is not None
        assert root.end_ns - root.start_ns == pytest.approx(point.timing.total_ms * 1e6, abs=2)
        children = {child.name: child for child in collector.children(root)}
        assert list(children) == PARTS
        assert children["encode"].start_ns >= children["wait for a turn"].end_ns


def test_a_missing_collector_is_reported_once_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    with closing(sink(f"http://127.0.0.1:{port}")) as sending:
        outputs: list[str] = []

        def heard(text: str) -> bool:
            outputs.append(capsys.readouterr().err)
            return text in "".join(outputs)

        number = 0

        def answered(text: str) -> bool:
            nonlocal number
            number += 1
            feed(sending, number)
            return heard(text)

        until(lambda: answered("takes no traces; the run goes on"))
        with collecting(port) as collector:
            until(lambda: answered(f"the collector at http://127.0.0.1:{port}/v1/traces is there"))
            assert collector.roots()
    end = capsys.readouterr().err
    assert "takes no traces" not in end + "".join(outputs[:-1]).replace("takes no traces", "", 1)
    assert f"of {number} traces reached the collector" in end


@pytest.mark.parametrize("status", [400, 404])
def test_a_server_that_takes_no_traces_is_reported(status: int, capsys: pytest.CaptureFixture[str]) -> None:
    with collecting(status=status) as collector, closing(sink(collector.url)) as sending:
        feed(sending, 0)
        until(lambda: "takes no traces" in capsys.readouterr().err)


def test_a_run_does_not_wait_for_a_collector_that_hangs(capsys: pytest.CaptureFixture[str]) -> None:
    with collecting(holds=True) as collector:
        sending = sink(collector.url)
        for number in range(QUEUE_SPANS):
            feed(sending, number)
        sending.close()
        assert f"of {QUEUE_SPANS} traces reached the collector" in capsys.readouterr().err
