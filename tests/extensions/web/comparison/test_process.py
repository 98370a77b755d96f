"""Comparisons in their process: the library's own answers, cancelled, and survived."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from arr_coc.model import ARRCOCQwen
from stream.extensions.web.comparison import process as process_module
from stream.extensions.web.comparison.messages import (
    ColumnSettings,
    CompareFailed,
    CompareJob,
    CompareOptions,
    ComparisonRequest,
    ModelChoice,
)
from stream.extensions.web.comparison.process import CompareProcess
from stream.scenes.stills import draw_shapes
from tests.support.network import LIMIT_S, until

QUESTION = "What is in the picture?"
PICTURE = np.ascontiguousarray(draw_shapes()[:384, :512])


def job(number: int, *columns: ColumnSettings, warm: bool = False, **fields: Any) -> CompareJob:
    request = ComparisonRequest("key", QUESTION, list(columns), warm=warm, **fields)
    height, width = PICTURE.shape[:2]
    return CompareJob(number, PICTURE.tobytes(), height, width, request)


@pytest.fixture(scope="module")
def engine() -> Iterator[CompareProcess]:
    with closing(
        CompareProcess(CompareOptions([ModelChoice("bundled"), ModelChoice("elsewhere", "no/such-model")]))
    ) as process:
        yield process


def answered(engine: CompareProcess, compare_job: CompareJob) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    engine.answer(compare_job, messages.append)
    return messages


def of(messages: list[dict[str, Any]], topic: str) -> list[dict[str, Any]]:
    return [message for message in messages if message["topic"] == topic]


def test_the_answers_are_those_of_the_library(engine: CompareProcess) -> None:
    columns = [
        ColumnSettings("bundled", "full"),
        ColumnSettings("bundled"),
        ColumnSettings("bundled", "sparse", "random", 48),
        ColumnSettings("bundled", "incremental", "grid", "20%"),
        ColumnSettings("bundled", "prune", "topk", 64),
        ColumnSettings("bundled", "weighted"),
    ]
    messages = answered(engine, job(1, *columns, max_tokens=8, seed=5))
    results = of(messages, "column")
    model = ARRCOCQwen.from_pretrained()
    assert len(results) == len(columns)
    for number, (column, result) in enumerate(zip(columns, results, strict=True)):
        reference = model.generate(PICTURE, QUESTION, 8, column.budget, column.encode, column.strategy, seed=5)  # type: ignore[arg-type]
        assert result["text"] == reference.text
        assert result["tokens"] == reference.tokens_used
        assert result["text_tokens"] == reference.text_tokens
        assert result["regions"] == reference.regions.ravel().tolist()
        assert (result["rows"], result["cols"]) == reference.heatmap.shape
        assert np.abs(np.array(result["relevance"]) / 255 - reference.heatmap.ravel()).max() <= 0.5 / 255 + 1e-5
        pieces = [message["text"] for message in of(messages, "text") if message["column"] == number]
        assert "".join(pieces) == reference.text
        assert result["first_call"] is True
        assert result["ms"]["total"] >= result["ms"]["first_token"] > 0
        assert result["memory"]["of"] == "process"
        assert result["memory"]["peak_bytes"] > 50e6
    (ended,) = of(messages, "ended")
    assert ended["cancelled"] is False
    assert ended["verdicts"][0] is None
    assert ended["verdicts"][1]["token_share"] == results[1]["tokens"] / results[0]["tokens"]
    assert [verdict["same"] for verdict in ended["verdicts"][1:]] == [
        result["text"] == results[0]["text"] for result in results[1:]
    ]


def test_a_warm_up_is_reported_and_made_once(engine: CompareProcess) -> None:
    column = ColumnSettings("bundled", "sparse", "foveated", 30)

    def states(compare_job: CompareJob) -> list[str]:
        messages = answered(engine, compare_job)
        assert of(messages, "column")[0]["first_call"] is False
        return [message["state"] for message in of(messages, "progress")]

    assert states(job(2, column, warm=True, max_tokens=6))[-2:] == ["warming up", "answering"]
    assert states(job(3, column, warm=True, max_tokens=6)) == ["answering"]


def test_a_column_that_cannot_be_answered_stops_no_other(engine: CompareProcess) -> None:
    messages = answered(engine, job(4, ColumnSettings("elsewhere"), ColumnSettings("bundled", budget=20), max_tokens=4))
    first, second = of(messages, "column")
    assert "no/such-model is not on this machine" in first["error"]
    assert second["tokens"] <= 20
    assert of(messages, "ended")[0]["verdicts"] == [None, None]


LONG = [ColumnSettings("bundled", "full")] * 200
"""Columns of a job that cannot end before the test acts: its messages are more than a pipe holds."""


def test_a_cancelled_job_ends_after_the_next_token(engine: CompareProcess) -> None:
    compare_job = job(5, *LONG)
    messages: list[dict[str, Any]] = []

    def report(message: dict[str, Any]) -> None:
        messages.append(message)
        if message["topic"] == "text":
            engine.cancel(compare_job.number)

    engine.answer(compare_job, report)
    assert messages[-1]["topic"] == "ended"
    assert messages[-1]["cancelled"] is True
    assert len(of(messages, "column")) < len(LONG)
    engine.cancel(compare_job.number)  # too late: it changes nothing
    assert of(answered(engine, job(6, ColumnSettings("bundled"), max_tokens=4)), "ended")[0]["cancelled"] is False


def test_a_process_that_dies_is_one_line_and_the_next_job_starts_another(engine: CompareProcess) -> None:
    def kill(message: dict[str, Any]) -> None:
        if message["topic"] == "text" and engine._child is not None:
            os.kill(engine._child.pid, signal.SIGKILL)

    with pytest.raises(CompareFailed, match=r"killed by SIGKILL; there may be too little memory.*; ask again"):
        engine.answer(job(7, *LONG), kill)
    assert of(answered(engine, job(8, ColumnSettings("bundled"), max_tokens=4)), "column")[0]["tokens"] > 0


def test_a_job_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "CANCEL_LIMIT_S", 0.0)
    stopped: list[dict[str, Any]] = []
    with closing(CompareProcess(CompareOptions([ModelChoice("bundled")]))) as engine:

        def stop_it(message: dict[str, Any]) -> None:
            if message["topic"] == "text" and not stopped:  # more may be in the pipe once it is dead
                stopped.append(message)
                assert engine._child is not None
                os.kill(engine._child.pid, signal.SIGSTOP)
                engine.cancel(1)

        with pytest.raises(CompareFailed, match="was killed by SIGKILL"):
            engine.answer(job(1, *LONG), stop_it)


def test_closing_ends_the_running_job_and_its_process() -> None:
    engine = CompareProcess(CompareOptions([ModelChoice("bundled")]))
    failed: list[Exception] = []

    def run() -> None:
        try:
            engine.answer(job(1, *LONG), lambda _: None)
        except CompareFailed as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: engine._child is not None)
    child = engine._child
    engine.close()
    thread.join(LIMIT_S)
    assert [str(error) for error in failed] == ["the program ends"]
    assert child is not None
    assert child.exit_error() is not None
    with pytest.raises(CompareFailed, match="the program ends"):
        engine.answer(job(2, ColumnSettings("bundled")), lambda _: None)
