"""Runs that are recorded and answered again: equal events, differing ones, and refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest

from arr_coc.types import LEVELS, REGION_SHAPES, FrameStamp, Question, TileGrid
from stream.answer.model import Packet
from stream.config import (
    AllocateConfig,
    AnswerConfig,
    Config,
    MemoryConfig,
    PipelineConfig,
    WatchConfig,
)
from stream.control import Ask
from stream.errors import RecordingError
from stream.events import Answer, Event, FrameReady, QueryChanged, Restarted, Summary, YesNoResult
from stream.extensions.record.format import (
    AnyRecord,
    EventRecord,
    ReceivedMessage,
    Recording,
    SentMessage,
    SessionStarted,
    compress_arrays,
    decompress_arrays,
)
from stream.extensions.record.provenance import parse_provenance
from stream.extensions.record.replay import (
    Replay,
    ReplayedAnswer,
    ReplayedYesNo,
    answered_by,
    open_recorded,
    replay_config,
)
from stream.extensions.record.section import RecordSection
from stream.extensions.shadow.section import ShadowSection
from stream.protocol.codec import token_message, token_packet
from stream.protocol.messages import Cancel, Connect, ServerHello, TokenPacketMessage, TurnExpired
from stream.recording.identity import AnswerProvenance, answer_provenance
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.run import Run
from tests.support.answer_models import FakeAnswerModel, MemoryAnswerModel
from tests.support.events import answer, frame, make_answer_reply, make_token_packet, make_yes_no_reply
from tests.support.runs import RunRecorder, open_supervised, watch
from tests.support.runs import config as supervised_config
from tests.support.video import make_video, moving_square

FRAMES = 30
MODEL_LOADER = "tests.support.answer_models:FakeAnswerModel"
MEMORY_LOADER = "tests.support.answer_models:MemoryAnswerModel"
PROVENANCE = AnswerProvenance("0.1.0", None, "7 files", 1, {})


class Forgetful(FakeAnswerModel):
    """Answers with the number of packets of this client that it has seen."""

    def __init__(self) -> None:
        super().__init__(Config())
        self.packets: dict[bytes, int] = {}

    def drop_client(self, client: bytes) -> None:
        self.packets.pop(client, None)

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        self.packets[self.client] = self.packets.get(self.client, 0) + 1
        list(super().answer(packet, query))
        yield f"{query} {self.packets[self.client]}"


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    frames = list(moving_square(FRAMES, 192, 128))
    return str(make_video(tmp_path_factory.mktemp("video") / "square.mp4", frames, 10))


def record(
    video: str,
    folder: Path | None,
    on_event: Callable[[Run, Event], None] | None = None,
    allocate: AllocateConfig | None = None,
    model_loader: str = MODEL_LOADER,
    watch: tuple[WatchConfig, ...] = (),
    shadow_every: int | None = None,
    **answer: Any,
) -> list[Event]:
    config = Config(
        source=video,
        allocate=allocate or AllocateConfig(budget=12),
        answer=AnswerConfig(every_s=1.0, **answer),
        watch=watch,
        shadow=ShadowSection(every=shadow_every),
        record=RecordSection(folder=str(folder) if folder else None),
        pipeline=PipelineConfig(single_process=True),
    )
    pipeline = run_in_threads(config, model_loader=model_loader)
    events: list[Event] = []
    for event in pipeline.run():
        events.append(event)
        if on_event is not None:
            on_event(pipeline, event)
    return events


def replayed(
    recording: Recording, model: FakeAnswerModel | None = None, provenance: AnswerProvenance | None = None
) -> tuple:
    """The events of a replay and its summary."""
    replay = Replay(model or FakeAnswerModel(Config()), provenance or answered_by(recording))
    events = [event for record in recording.records() for event in replay.take(record)]
    return events, replay.summary(recording.damage)


@pytest.mark.parametrize("encode", ["sparse", "full"])
def test_a_recorded_run_gives_the_same_answers_again(video: str, tmp_path: Path, encode: str) -> None:
    recorded_events = record(video, tmp_path / "a", encode=encode)
    events, summary = replayed(Recording(tmp_path / "a"))
    answers = [event for event in recorded_events if isinstance(event, Answer)]
    replies = [event for event in events if isinstance(event, ReplayedAnswer)]
    assert [(a.answer, a.frame_index, a.pts_s, a.query, a.text) for a in answers] == [
        (a.answer, a.frame_index, a.pts_s, a.query, a.text) for a in replies
    ]
    assert all(a.same and a.recorded == a.text and not a.check for a in replies)
    assert [e.frame_index for e in events if isinstance(e, FrameReady)] == list(range(FRAMES))
    assert (summary.answers, summary.looks, summary.differing, summary.unanswered) == (4, 0, 0, 0)
    assert (summary.damage, summary.first_s) == ((), None)
    assert summary.recorded is not None
    assert without_timing(summary.recorded) == without_timing(recorded_events[-1])


def test_wide_regions_come_back_from_a_recording(tmp_path: Path) -> None:
    page = np.full((384, 768, 3), 240, np.uint8)
    for row in range(40, 384, 64):
        cv2.putText(page, "lines of text that are read along", (16, row), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (0, 0, 0), 3)
    video = make_video(tmp_path / "page.mp4", [page] * 12, 10)
    allocate = AllocateConfig(budget=72, wide=True)
    record(str(video), tmp_path / "a", allocate=allocate)
    recording = Recording(tmp_path / "a")
    packets = [
        token_packet(entry.message, decompress_arrays(entry))
        for entry in recording.records()
        if isinstance(entry, SentMessage) and isinstance(entry.message, TokenPacketMessage)
    ]
    codes = {code for packet in packets for code in packet.regions[:, 0].tolist()}
    assert codes & set(range(LEVELS, len(REGION_SHAPES)))
    _, summary = replayed(recording)
    assert (summary.answers, summary.differing, summary.unanswered, summary.damage) == (3, 0, 0, ())


def without_timing(event: Event) -> Event:
    """The event without its wall time: a recording ends a moment before its run."""
    return msgspec.structs.replace(event, timing=None)


def test_a_recording_is_whole_when_its_run_reports_the_summary(video: str, tmp_path: Path) -> None:
    records: list[AnyRecord] = []

    def look(pipeline: Run, event: Event) -> None:
        if isinstance(event, Summary):
            assert not any(thread.name == "recorder" for thread in threading.enumerate())
            records.extend(Recording(tmp_path / "a").records())

    events = record(video, tmp_path / "a", look)
    last = records[-1]
    assert isinstance(last, EventRecord)
    assert without_timing(last.event) == without_timing(events[-1])


def test_a_run_that_records_nothing_reports_the_same(video: str, tmp_path: Path) -> None:
    recorded, plain = record(video, tmp_path / "a"), record(video, None)
    assert [type(event) for event in recorded] == [type(event) for event in plain]


def test_looks_and_questions_of_the_run_are_asked_again(video: str, tmp_path: Path) -> None:
    def ask(pipeline: Run, event: Event) -> None:
        if isinstance(event, FrameReady) and event.frame_index == 15:
            pipeline.send(Ask("and now?"))

    questions = ["is it bright?", "is it light?"]
    watches = tuple(WatchConfig(question=question, name=question[6:-1]) for question in questions)
    recorded_events = record(video, tmp_path / "a", ask, watch=watches, captions=True)
    events, summary = replayed(Recording(tmp_path / "a"))
    assert any(isinstance(event, QueryChanged) for event in events)
    queries = [event.query for event in events if isinstance(event, ReplayedAnswer)]
    assert queries == [event.query for event in recorded_events if isinstance(event, Answer)]
    assert set(queries) == {"Say what happens.", "and now?"}
    looks = [event for event in recorded_events if isinstance(event, YesNoResult)]
    replies = [event for event in events if isinstance(event, ReplayedYesNo)]
    assert [(a.frame_index, a.recorded_yes, a.question) for a in replies] == [
        (look.frame_index, look.yes, look.question) for look in looks
    ]
    assert [a.question for a in replies[:2]] == questions
    assert (summary.looks, summary.differing) == (len(looks), 0)
    assert all(a.same for a in replies)


def test_checks_of_answers_are_repeated_and_marked(video: str, tmp_path: Path) -> None:
    record(video, tmp_path / "a", shadow_every=2)
    events, summary = replayed(Recording(tmp_path / "a"))
    replies = [event for event in events if isinstance(event, ReplayedAnswer)]
    assert [a.answer for a in replies if not a.check] == [0, 1, 2, 3]
    assert [a.answer for a in replies if a.check] == [1, 3]
    assert summary.differing == 0


def test_an_answer_that_is_another_one_is_shown_beside_the_recorded(video: str, tmp_path: Path) -> None:
    class Changed(FakeAnswerModel):
        def answer(self, packet: Packet, query: str) -> Iterator[str]:
            yield from super().answer(packet, query)
            if packet.stamp.frame_index == 10:  # the same text, in another number of tokens
                assert self._answer_stats is not None
                work = replace(self._answer_stats.work, text_tokens=5)
                self._answer_stats = replace(self._answer_stats, work=work)
            if packet.stamp.frame_index >= 20:
                yield "!"

        def score_yes_no(self, packet: Packet, query: str) -> tuple[float, float]:
            yes, certainty = super().score_yes_no(packet, query)
            return yes, certainty - (0.002 if packet.stamp.frame_index >= 20 else 0.0005)

    record(video, tmp_path / "a", watch=(WatchConfig(question="bright?", name="bright"),), captions=True)
    events, summary = replayed(Recording(tmp_path / "a"), Changed(Config()))
    replies = [event for event in events if isinstance(event, ReplayedAnswer)]
    assert [a.same for a in replies] == [True, False, False, False]
    assert replies[1].text == replies[1].recorded
    assert replies[2].text == replies[2].recorded + "!"
    looks = [event for event in events if isinstance(event, ReplayedYesNo)]
    assert [look.same for look in looks] == [look.frame_index < 20 for look in looks]
    assert summary.first_s == 1.0
    assert summary.differing == 3 + sum(not look.same for look in looks)


def packet_record(number: int, *, wants_answer: bool = True) -> SentMessage:
    packet = make_token_packet(FrameStamp(number, number * 10**9, 0), TileGrid.of(64, 96), value=number)
    message, arrays = token_message(number, number, packet, Question("q", wants_answer=wants_answer, checks=("u",)))
    return SentMessage(message, compress_arrays(arrays))


def answered(number: int, text: str) -> ReceivedMessage:
    return ReceivedMessage(make_answer_reply(number, text, text_tokens=4))


def looked(number: int, *scores: tuple[float, float]) -> ReceivedMessage:
    return ReceivedMessage(make_yes_no_reply(number, *scores or ((0.01, 1.0),)))


def take(model: FakeAnswerModel, *records: AnyRecord) -> tuple[list[Event], Replay]:
    replay = Replay(model, PROVENANCE)
    return [event for record in records for event in replay.take(record)], replay


JOIN = SentMessage(Connect())


def test_records_before_a_run_joined_anew_are_forgotten() -> None:
    model = Forgetful()
    first = [JOIN, packet_record(1), answered(1, "q 1"), packet_record(2), answered(2, "q 2")]
    events, _ = take(model, *first, JOIN, packet_record(3), answered(3, "q 1"))
    assert [event.same for event in events if isinstance(event, ReplayedAnswer)] == [True] * 3
    assert list(model.packets.values()) == [1]


def test_only_packets_that_were_answered_are_asked() -> None:
    model = Forgetful()
    lapsed = [packet_record(1), ReceivedMessage(TurnExpired(turn=1))]
    packets = [packet_record(2)]
    events, replay = take(model, JOIN, *lapsed, *packets, JOIN, packet_record(3), answered(3, "q 1"), packet_record(4))
    assert len(events) == 1
    assert replay.summary([]).unanswered == 2, "the one that was lost, and the last"
    assert replay.summary(["cut"]).damage == ("cut",)


def test_an_answer_that_was_cancelled_is_not_asked_for_even_if_it_came_too_late() -> None:
    late = [packet_record(1), SentMessage(Cancel()), answered(1, "x")]
    events, replay = take(FakeAnswerModel(Config()), JOIN, *late, packet_record(2), answered(2, "frame 2 sum 3072"))
    assert [event.answer for event in events] == [2]  # type: ignore[attr-defined]
    assert replay.summary([]).unanswered == 1


def test_a_packet_that_was_only_looked_at_is_not_asked_for_an_answer() -> None:
    events, replay = take(
        FakeAnswerModel(Config()), JOIN, packet_record(1, wants_answer=False), looked(1), answered(1, "x")
    )
    assert [type(event) for event in events] == [ReplayedYesNo]
    assert replay.summary([]).unanswered == 0
    events, replay = take(FakeAnswerModel(Config()), JOIN, packet_record(1), looked(1), answered(1, "frame 1 sum 3072"))
    assert [event.same for event in events] == [True, True]  # type: ignore[attr-defined]


def hello(provenance: AnswerProvenance) -> ReceivedMessage:
    text = msgspec.json.encode(provenance).decode()
    return ReceivedMessage(ServerHello(model_id="m", knows_levels=True, known_world=None, provenance=text))


def test_a_recording_that_goes_on_with_another_model_is_refused_from_there() -> None:
    same = msgspec.structs.replace(PROVENANCE, threads=2, program="9")
    take(FakeAnswerModel(Config()), hello(PROVENANCE), hello(same))
    for other in (
        msgspec.structs.replace(PROVENANCE, weights="8 files"),
        msgspec.structs.replace(PROVENANCE, settings={"a": 1}),
    ):
        with pytest.raises(RecordingError, match=r"another model or by other settings: .*; record it again"):
            take(FakeAnswerModel(Config()), hello(PROVENANCE), hello(other))


def test_a_recording_without_an_answer_stage_is_reported(video: str, tmp_path: Path) -> None:
    record(video, tmp_path)
    part = tmp_path / "0001.rec"
    part.write_bytes(part.read_bytes()[:150])
    with pytest.raises(RecordingError, match=r"nothing was answered in .*: the run ended before its model was loaded"):
        answered_by(Recording(tmp_path))


def test_the_recorded_model_is_opened_wherever_it_is_and_no_other(tmp_path: Path) -> None:
    for name, weights in (("model", b"w"), ("copy", b"w"), ("other", b"x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    provenance = parse_provenance(
        answer_provenance(Config(answer=AnswerConfig(model=str(tmp_path / "model"), max_tokens=7)))
    )
    for model in (None, str(tmp_path / "copy")):
        config = replay_config(provenance, model, "cpu", None)
        assert config.answer.model == (model or str(tmp_path / "model"))
        assert (config.answer.device, config.answer.dtype, config.answer.max_tokens) == ("cpu", "auto", 7)
        assert isinstance(open_recorded(provenance, config, MODEL_LOADER), FakeAnswerModel)
    other = replay_config(provenance, str(tmp_path / "other"), None, None)
    with pytest.raises(RecordingError, match=r"another model than .*other: .*model \(1 file, .*; give --model the"):
        open_recorded(provenance, other, MODEL_LOADER)


def test_a_model_of_the_hub_is_compared_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    provenance = msgspec.structs.replace(PROVENANCE, model="owner/model")
    weights = iter(["unknown", "7 files", "unknown", "8 files"])
    monkeypatch.setattr("stream.extensions.record.replay.weights_of", lambda name: next(weights))
    config = Config(answer=AnswerConfig(model="owner/model"))
    assert isinstance(open_recorded(provenance, config, MODEL_LOADER), FakeAnswerModel)
    with pytest.raises(RecordingError, match="8 files here"):
        open_recorded(provenance, config, MODEL_LOADER)


def test_both_processes_are_killed_and_what_was_recorded_is_answered_again(tmp_path: Path) -> None:
    run_config = supervised_config().with_values({"record.folder": str(tmp_path / "a")})
    run = open_supervised(settings=run_config)

    def on_event(recorder: RunRecorder, event: Event) -> None:
        if not isinstance(event, Answer):
            return
        restarts = len(recorder.of(Restarted))
        answers_since = sum(isinstance(e, Answer) for e in recorder.since(Restarted))
        if recorder.once("answers", restarts == 0 and answers_since == 2):
            recorder.signal("answers")
        if recorder.once("frames", restarts == 1 and answers_since == 2):
            recorder.signal("frames")
        if restarts == 2 and answers_since == 2:
            run.end()

    recorder = watch(run, on_event)
    assert [process for process, _, _ in recorder.restarts()] == ["answers", "frames"]
    recording = Recording(tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["0001.rec", "0002.rec"]
    events, summary = replayed(recording)
    messages = [record.message for record in recording.records() if isinstance(record, SentMessage)]
    assert sum(isinstance(message, Connect) for message in messages) == 3
    assert summary.answers >= 5, "the last of the one that was killed may be lost with it"
    assert summary.differing == 0
    assert isinstance(summary.recorded, Summary), "the run waited for the end of its recording"
    frames = [event for event in events if isinstance(event, FrameReady)]
    assert summary.frames == len(frames) >= len(recorder.of(FrameReady)) - 5
    replies = [event for event in events if isinstance(event, ReplayedAnswer)]
    for run_events in (frames, replies):
        assert [event.pts_s for event in run_events] == sorted(event.pts_s for event in run_events)
        assert [event.frame_index for event in run_events] == sorted({event.frame_index for event in run_events})
    assert [event.answer for event in replies] == sorted({event.answer for event in replies})


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize(("live", "later_s"), [(True, 60.0), (False, 0.0)])
def test_a_live_source_that_was_opened_again_goes_on_in_time_and_a_file_has_its_own(
    live: bool, later_s: float, reported: bool
) -> None:
    """`reported`: whether the first process lived long enough to report the answer that it had received."""
    second = 10**9

    def part(opened_ns: int) -> list[AnyRecord]:
        session = SessionStarted("0.1.0", "camera", "2026-01-01", live=live)
        frames = [frame(number, number / 10, capture_ns=opened_ns + number * second // 10) for number in range(3)]
        return [
            session,
            *(EventRecord(event) for event in frames),
            JOIN,
            packet_record(0),
            answered(0, "frame 0 sum 0"),
        ]

    report = [EventRecord(answer(0.0, ""))] if reported else []
    records = [*part(5 * second), *report, *part(65 * second)]  # the second one's answer is 0 again
    events, replay = take(FakeAnswerModel(Config()), *records)
    times = [(e.frame_index, round(e.pts_s, 3)) for e in events if isinstance(e, FrameReady)]
    assert times == [(number, round(number % 3 / 10 + (number > 2) * later_s, 3)) for number in range(6)]
    replies = [event for event in events if isinstance(event, ReplayedAnswer)]
    assert [(e.answer, e.frame_index, round(e.pts_s, 3)) for e in replies] == [(0, 0, 0.0), (1, 3, later_s)]
    assert all(event.same and not event.check for event in replies)
    assert (replay.summary([]).frames, replay.summary([]).answers) == (6, 2)


def test_a_run_with_memory_gets_its_answers_again(video: str, tmp_path: Path) -> None:
    memory = MemoryConfig(enabled=True, tokens=256)
    events = record(video, tmp_path / "a", model_loader=MEMORY_LOADER, memory=memory)
    answers = [event for event in events if isinstance(event, Answer)]
    assert max(len(answer.text.split()) for answer in answers) > 2, "some are about several frames"
    recording = Recording(tmp_path / "a")
    provenance = answered_by(recording)
    config = replay_config(provenance, None, None, None)
    assert config.answer.memory == memory
    _, summary = replayed(recording, MemoryAnswerModel(config), provenance)
    assert (summary.answers, summary.differing) == (len(answers), 0)
