"""The answer process: it answers, and it never outlives its parent's interest."""

from __future__ import annotations

import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import psutil
import pytest

from arr_coc.errors import ModelNotFound, OptionError
from arr_coc.hub import bundled_model_path
from stream.cli import main
from stream.config import AnswerConfig, CaptureConfig, Config, NetworkConfig, PipelineConfig
from stream.control import RunControl
from stream.errors import ConfigError, ConnectionRefused, StageDied
from stream.events import ANSWERS_LOST, Answer, AnswerDeltaEvent, Event, Notice, Restarted, Summary
from stream.extensions.api.section import ApiSection
from stream.extensions.metrics.section import MetricsSection
from stream.extensions.record.format import Recording
from stream.extensions.record.replay import Replay, ReplayedAnswer, answered_by, replay_config
from stream.extensions.record.section import RecordSection
from stream.protocol.messages import Connect, ServerHello
from stream.runtime import answer_worker
from stream.runtime.answer_service import AnswerService, answer_threads
from stream.runtime.answer_worker import serve_answers
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.worker_messages import AnswerWorkerConfig
from stream.transport import Link, SocketDirectory, Transport
from tests.support import answer_models
from tests.support.answer_models import FakeAnswerModel
from tests.support.api_server import MODEL, api_server
from tests.support.children import own_children
from tests.support.network import LIMIT_S, free_port, keyed, until
from tests.support.runs import expect

NAMED = str(bundled_model_path())


class Fixture:
    def __init__(self, stack: ExitStack, model: str = "FakeAnswerModel") -> None:
        transport = Transport()
        stack.callback(transport.close)
        service = AnswerService(Config(), restart=False, model_loader=f"tests.support.answer_models:{model}")
        stack.enter_context(service.hold())
        self.directory = Path(service.address.removeprefix("ipc://")).parent
        self.link: Link = stack.enter_context(closing(transport.link(service.address, watched=True)))
        assert service._supervisor is not None
        self.child = service._supervisor.child
        self.process_info = psutil.Process(self.child.pid)

    def gone(self) -> bool:
        return not self.process_info.is_running() or self.process_info.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_it_greets_and_beats_until_its_parent_is_gone_and_then_tidies_up(stack: ExitStack) -> None:
    fixture = Fixture(stack)
    assert os.getsid(fixture.child.pid) != os.getsid(0), "Ctrl-C would reach it"
    fixture.link.send(Connect())
    assert expect(fixture.link, ServerHello).model_id == "fake"
    until(lambda: fixture.child.silence_s() > 0)
    assert fixture.child.exit_error() is None
    stdin = fixture.child._process.stdin
    assert stdin is not None
    stdin.close()
    fixture.process_info.wait(LIMIT_S)
    assert not fixture.directory.exists()


def test_a_model_that_cannot_be_loaded_ends_it_with_the_error_on_its_last_line(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = Fixture(stack, "open_missing")
    fixture.link.send(Connect())
    until(lambda: fixture.child.exit_error() is not None)
    death = fixture.child.exit_error()
    assert death is not None
    assert death.cause == (
        "its process exited with status 1 (arr_coc.errors.ModelNotFound: there is no folder nowhere)"
    )


def test_a_child_that_does_not_end_is_killed(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.runtime.child.STOP_LIMIT_S", 0.01)
    fixture = Fixture(stack)
    os.kill(fixture.child.pid, signal.SIGSTOP)
    fixture.child.stop()
    assert fixture.gone()


def test_the_model_gets_all_cores_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert answer_threads(exclusive=False) == 7
    assert answer_threads(exclusive=True) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert answer_threads(exclusive=False) == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert answer_threads(exclusive=False) == 3


@pytest.mark.parametrize(
    ("model", "realtime", "answers", "threads"),
    [
        (NAMED, False, "lockstep", 4),
        (NAMED, False, "newest", 3),
        (NAMED, True, "lockstep", 3),
        (None, False, "lockstep", 3),
    ],
)
def test_a_large_model_has_all_cores_while_frames_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, model: str | None, realtime: bool, answers: str, threads: int
) -> None:
    class Started(Exception):
        """Raised with the number of threads that a process would start with."""

    def start(*arguments: Any, forks: object) -> None:
        raise Started(arguments[-1]["OMP_NUM_THREADS"])

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr("stream.runtime.answer_service.ChildProcess", start)
    config = Config(
        source="scene:demo",
        capture=CaptureConfig(realtime=realtime),
        answer=AnswerConfig(model=model),
        pipeline=PipelineConfig(answers=answers),  # type: ignore[arg-type]
    )
    with pytest.raises(Started, match=f"^{threads}$"):
        list(run_in_threads(config).run())


def test_without_orders_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open() as empty:
        monkeypatch.setattr("sys.stdin", empty)
        assert answer_worker.main() == 1


ANYWHERE = "tcp://127.0.0.1:*"


class Served:
    """An answer stage in a thread."""

    def __init__(self, endpoint: str, config: Config, model: str) -> None:
        self.control, self.ready = RunControl(), threading.Event()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(endpoint, config, model))
        self._thread.start()

    def _run(self, endpoint: str, config: Config, model: str) -> None:
        try:
            serve_answers(config, endpoint, self.ready.set, self.control, f"tests.support.answer_models:{model}")
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self.control.cancel()
        self.join()

    def join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


@pytest.fixture
def endpoint() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@contextmanager
def serving_at(endpoint: str, config: Config | None = None, model: str = "FakeAnswerModel") -> Iterator[Served]:
    served = Served(endpoint, config or Config(), model)
    try:
        assert served.ready.wait(LIMIT_S)
        yield served
    finally:
        served.stop()


def client(endpoint: str, query: str = "What?", network: NetworkConfig | None = None, **sections: Any) -> Config:
    options: dict[str, Any] = {"capture": CaptureConfig(max_frames=20, size="128x96", open_timeout_s=3.0), **sections}
    answer = AnswerConfig(server=endpoint, query=query, every_s=0.2)
    return Config(source="scene:moving", answer=answer, network=network or NetworkConfig(), **options)


def events_of(config: Config) -> list[Event]:
    return list(run_in_threads(config).run())


def run_across_a_loss(
    config: Config, monkeypatch: pytest.MonkeyPatch, model: str = "FakeAnswerModel", *, from_frame: int = 0
) -> list[Event]:
    """The events of a run whose answer stage goes in the middle of an answer, and which another one follows."""
    endpoint, has_left = config.answer.server or "", threading.Event()
    with ExitStack() as stack:
        first = stack.enter_context(serving_at(endpoint, model=model))

        def go(frame_index: int) -> None:
            if frame_index >= from_frame and not has_left.is_set():
                first.control.cancel()
                has_left.set()

        def follow() -> None:
            assert has_left.wait(LIMIT_S)
            first.join()
            stack.enter_context(serving_at(endpoint, model=model))

        monkeypatch.setattr(answer_models, "on_packet", go)
        follower = threading.Thread(target=follow)
        follower.start()
        events = events_of(config)
        follower.join(LIMIT_S)
    return events


def continued(
    video: str, folder: Path, monkeypatch: pytest.MonkeyPatch, model: str, *options: str
) -> tuple[bytes, list[int]]:
    """Fail a run of `caption` while it speaks about frame 25, and continue it: the bytes are those of a whole run.

    Returns the output of the failed run, and the frames that the continued one asked about.
    """
    monkeypatch.setitem(run_in_threads.__kwdefaults__, "model_loader", f"tests.support.answer_models:{model}")

    def caption(name: str, *extra: str) -> tuple[int, bytes]:
        path = folder / f"{name}.jsonl"
        arguments = ["--every", "0.5", "--no-timing", "--single-process", *options]
        return main(["caption", video, "-o", str(path), *arguments, *extra]), path.read_bytes()

    def fail(frame_index: int) -> None:
        if frame_index == 25:
            raise ArithmeticError("the spoon is bent")

    unbroken = caption("whole")
    assert unbroken[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(answer_models, "on_packet", fail)
        status, broken = caption("broken")
        assert status == 1
    asked_frames: list[int] = []
    monkeypatch.setattr(answer_models, "on_packet", asked_frames.append)
    assert caption("broken", "--resume") == unbroken
    return broken, asked_frames


def without_clock(events: list[Event]) -> list[dict[str, Any]]:
    clocked = {"timing", "capture_ns", "ready_ns", "texture_ms", "allocate_ms"}
    return [{k: v for k, v in msgspec.to_builtins(event).items() if k not in clocked} for event in events]


def test_a_run_is_answered_without_a_separate_child(endpoint: str) -> None:
    with serving_at(endpoint):
        pipeline = run_in_threads(client(endpoint))
        events = list(pipeline.run())
        assert own_children() == []
        assert set(pipeline.processes()) == {"frames"}
    answers = [event for event in events if isinstance(event, Answer)]
    assert [(a.trigger, a.query) for a in answers][:2] == [("start", "What?"), ("every", "What?")]
    assert Notice(code="loading", message=f"connecting to {endpoint}") in events


def test_runs_that_share_an_answer_stage_get_the_answers_that_each_would_get_alone(endpoint: str) -> None:
    queries = ["What?", "Where is the square?"]
    with serving_at(endpoint, model="SlowAnswerModel"):
        expected = [without_clock(events_of(client(endpoint, query))) for query in queries]
        results: dict[str, list[Event]] = {}
        threads = [
            threading.Thread(target=lambda query=query: results.update({query: events_of(client(endpoint, query))}))
            for query in queries
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    assert [without_clock(results[query]) for query in queries] == expected
    assert expected[0] != expected[1]


def without_pieces(events: Iterable[Event]) -> list[Event]:
    """The events without the pieces of answers, some of which are sent again after an answer stage was lost."""
    return [event for event in events if not isinstance(event, AnswerDeltaEvent)]


def test_a_recording_has_the_settings_that_the_server_answers_by(endpoint: str, tmp_path: Path) -> None:
    with serving_at(endpoint, Config(answer=AnswerConfig(max_tokens=7))):
        events = events_of(client(endpoint, record=RecordSection(folder=str(tmp_path / "a"))))
    recording = Recording(tmp_path / "a")
    by = answered_by(recording)
    assert replay_config(by, None, None, None).answer.max_tokens == 7
    replay = Replay(FakeAnswerModel(Config()), by)
    replies = [
        event for record in recording.records() for event in replay.take(record) if isinstance(event, ReplayedAnswer)
    ]
    assert [event.text for event in replies] == [event.text for event in events if isinstance(event, Answer)]
    assert all(event.same for event in replies)


def test_an_answer_that_fails_ends_its_run_and_not_the_stage(endpoint: str) -> None:
    with serving_at(endpoint, model="BrokenAnswerModel") as served:
        for _ in range(2):
            with pytest.raises(StageDied, match="the answer stage died: ArithmeticError: the spoon is bent"):
                events_of(client(endpoint))
        assert served.error is None


def test_both_ends_must_have_the_same_encoding(endpoint: str) -> None:
    with (
        serving_at(endpoint, Config(answer=AnswerConfig(encode="full"))),
        pytest.raises(OptionError, match="the answer server encodes full, not sparse; give --encode full here"),
    ):
        events_of(client(endpoint))


def test_without_an_answer_server_the_run_reports_it(endpoint: str) -> None:
    capture = CaptureConfig(max_frames=20, size="128x96", open_timeout_s=0.2)
    with pytest.raises(ConnectionRefused, match=r"no answer server at tcp://.* within 0.2 s; start one there with"):
        events_of(client(endpoint, capture=capture))


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (PipelineConfig(timeout_s=0.2), r"gone for 0.2 s; restart `serve-answers` at tcp://"),
        (PipelineConfig(restart=False), "the connection to it was lost"),
    ],
)
def test_a_run_ends_with_an_answer_stage_that_goes_for_good_or_that_it_may_not_rejoin(
    endpoint: str, pipeline: PipelineConfig, message: str
) -> None:
    run = run_in_threads(client(endpoint, pipeline=pipeline, capture=CaptureConfig(size="128x96")))
    with serving_at(endpoint) as served:

        def stop_after_the_first(event: Event) -> None:
            if isinstance(event, Answer) and not served.control.cancelled:
                served.stop()

        with pytest.raises(StageDied, match=message):
            list(map(stop_after_the_first, run.run()))


@pytest.mark.parametrize("sections", [{}, {"pipeline": PipelineConfig(restart=True)}])
def test_a_file_at_its_own_pace_goes_on_with_the_next_answer_stage(endpoint: str, sections: dict[str, Any]) -> None:
    pipeline = run_in_threads(client(endpoint, capture=CaptureConfig(size="128x96", realtime=True), **sections))
    with ExitStack() as stack:
        served = stack.enter_context(serving_at(endpoint))
        answers, connection_lost = 0, False
        for event in pipeline.run():
            assert not isinstance(event, Restarted)
            connection_lost = connection_lost or (isinstance(event, Notice) and event.code == ANSWERS_LOST)
            if isinstance(event, Answer):
                answers += 1
                if answers == 2:
                    served.stop()
                    stack.enter_context(serving_at(endpoint))
                elif answers == 4:
                    pipeline.end()
    assert answers >= 4
    assert connection_lost


def test_a_file_read_without_a_loss_is_answered_as_if_nothing_had_happened(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer stage goes in the middle of its second answer, and another one takes its place."""
    with serving_at(endpoint):
        unbroken = without_clock(without_pieces(events_of(client(endpoint))))
    events = run_across_a_loss(client(endpoint), monkeypatch, from_frame=1)
    losses = [event for event in events if isinstance(event, Notice) and event.code == ANSWERS_LOST]
    assert [event.message for event in losses] == [
        "no answers: the connection was lost; reconnecting to the answer server"
    ]
    assert without_clock(without_pieces(event for event in events if event not in losses)) == unbroken


def test_a_file_that_ends_while_the_answer_stage_is_away_ends_the_run(endpoint: str) -> None:
    capture = CaptureConfig(max_frames=40, size="128x96", realtime=True)
    with serving_at(endpoint) as served:
        events = []
        for event in run_in_threads(client(endpoint, capture=capture)).run():
            events.append(event)
            if isinstance(event, Answer) and not served.control.cancelled:
                served.stop()
    assert isinstance(events[-1], Summary)
    assert events[-1].ended == "finished"


def test_only_holders_of_a_key_are_answered(tmp_path: Path, endpoint: str) -> None:
    keys, others = keyed(tmp_path, "ours"), keyed(tmp_path, "others")
    with serving_at(endpoint, Config(network=keys)):
        assert any(isinstance(event, Answer) for event in events_of(client(endpoint, network=keys)))
        with pytest.raises(ConnectionRefused):
            events_of(client(endpoint, network=others))
        with pytest.raises(ConnectionRefused):
            events_of(client(endpoint))


def test_an_address_in_use_is_reported_before_the_model_is_loaded(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_at(endpoint):
        monkeypatch.setattr(answer_worker, "load_answer_model", Mock(side_effect=AssertionError("it was loaded first")))
        with pytest.raises(ConfigError, match=f"cannot open {endpoint}: another program uses it"):
            serve_answers(Config(), endpoint, lambda: None, RunControl())


def test_without_keys_clients_of_other_machines_are_not_served() -> None:
    with pytest.raises(ConfigError, match="leaves this machine without keys"):
        serve_answers(Config(), "tcp://0.0.0.0:5555", lambda: None, RunControl())


def test_a_model_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.answer.server.LOAD_FAILURE_NS", 0)
    with pytest.raises(ModelNotFound, match="there is no folder nowhere"):
        serve_answers(Config(), ANYWHERE, lambda: None, RunControl(), "tests.support.answer_models:open_missing")


@pytest.mark.parametrize(("number", "drains"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_signal_ends_it(number: int, drains: bool) -> None:
    before = signal.getsignal(number)
    drained = serve_answers(
        Config(),
        ANYWHERE,
        lambda: os.kill(os.getpid(), number),
        model_loader="tests.support.answer_models:FakeAnswerModel",
    )
    assert signal.getsignal(number) is before
    assert drained == drains


def test_a_second_signal_waits_for_no_answer_and_a_second_ctrl_c_for_nothing() -> None:
    control = RunControl()
    with answer_worker._signals_end(control):
        os.kill(os.getpid(), signal.SIGTERM)
        assert (control.ending, control.cancelled) == (True, False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert control.cancelled
    control = RunControl()
    with answer_worker._signals_end(control):
        os.kill(os.getpid(), signal.SIGINT)
        assert control.cancelled
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_does_not_wait_for_a_model_that_is_loading(
    monkeypatch: pytest.MonkeyPatch, number: int, error: type[BaseException]
) -> None:
    def load(name: str, config: Config) -> FakeAnswerModel:
        os.kill(os.getpid(), number)
        return FakeAnswerModel(config)

    monkeypatch.setattr(answer_worker, "load_answer_model", load)
    with pytest.raises(error) as ended:
        serve_answers(Config(), ANYWHERE, lambda: pytest.fail("it was loaded"))
    assert getattr(ended.value, "code", 0) == 0


def test_its_metrics_are_there_from_before_the_model_is_loaded_to_the_end(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    statuses: list[int] = []

    def ready_status() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=LIMIT_S) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def load(name: str, config: Config) -> FakeAnswerModel:
        statuses.append(ready_status())
        return FakeAnswerModel(config)

    monkeypatch.setattr(answer_worker, "load_answer_model", load)
    control = RunControl()

    def ready() -> None:
        statuses.append(ready_status())
        control.end()
        statuses.append(ready_status())

    assert serve_answers(Config(metrics=MetricsSection(port=port)), endpoint, ready, control)
    assert statuses == [503, 200, 503]
    with pytest.raises(urllib.error.URLError):
        ready_status()


def test_several_cameras_share_a_server_with_an_api(endpoint: str) -> None:
    with api_server() as server:
        config = Config(answer=AnswerConfig(encode="picture", model=MODEL), api=ApiSection(url=server.url))
        control, ready = RunControl(), threading.Event()
        serving = threading.Thread(target=serve_answers, args=(config, endpoint, ready.set, control))
        serving.start()
        try:
            assert ready.wait(LIMIT_S)
            asking = client(endpoint).answer.model_copy(update={"encode": "picture"})
            events = events_of(client(endpoint).model_copy(update={"answer": asking}))
        finally:
            control.cancel()
            serving.join(LIMIT_S)
    texts = {event.text for event in events if isinstance(event, Answer)}
    assert texts == {"a red circle"}


@pytest.mark.parametrize(
    ("runs", "slots", "expected"), [(0, 1, [1]), (1, 1, [1]), (5, 1, [5]), (99, 1, [8]), (5, 3, [3])]
)
def test_several_runs_have_slots_unless_their_number_is_given(
    monkeypatch: pytest.MonkeyPatch, runs: int, slots: int, expected: list[int]
) -> None:
    loaded: list[int] = []
    monkeypatch.setattr(answer_worker, "load_answer_model", lambda _, config: loaded.append(config.answer.slots))
    answer_worker._load_for_several(worker_config(runs), Config(answer=AnswerConfig(slots=slots)))
    assert loaded == expected


def test_a_model_that_takes_no_slots_answers_several_runs_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded: list[int] = []

    def load(_: str, config: Config) -> None:
        if config.answer.slots > 1:
            raise OptionError("its attention sees a part of the text only")
        loaded.append(config.answer.slots)

    monkeypatch.setattr(answer_worker, "load_answer_model", load)
    answer_worker._load_for_several(worker_config(4), Config())
    assert loaded == [1]
    assert caplog.messages == ["one answer after the other: its attention sees a part of the text only"]


def worker_config(runs: int) -> AnswerWorkerConfig:
    return AnswerWorkerConfig("ipc://x", "ipc://y", SocketDirectory("", "", 0, 0), 0, 0, 1, "m:f", "{}", runs)


def test_freed_memory_is_given_back_until_the_end() -> None:
    ended, trims = threading.Event(), list[int]()

    def trim() -> None:
        trims.append(len(trims))
        if len(trims) == 3:
            ended.set()

    answer_worker.give_memory_back(trim, 0.0, ended)
    assert trims == [0, 1, 2]
