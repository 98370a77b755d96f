"""Whole runs on small videos, with a fake answer model: their events, and how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.errors import DeviceLost, ModelNotFound
from arr_coc.texture.store.base import TextureView
from arr_coc.texture.store.native import kernel_in_use
from arr_coc.types import Encode, Feedback, TileMotion
from arr_coc.video.texture_updater import TextureUpdater
from stream.clock import Clock
from stream.config import (
    AllocateConfig,
    AnswerConfig,
    CaptureConfig,
    Config,
    PipelineConfig,
    TextureConfig,
)
from stream.errors import SourceNotFound, StageDied, TransportError
from stream.events import (
    STORE_LOST,
    Answer,
    AnswerDeltaEvent,
    Cut,
    Event,
    FrameReady,
    Notice,
    PictureChanged,
    Skipped,
    Started,
    Summary,
)
from stream.extensions.heatmap.section import HeatmapSection
from stream.extensions.latency.section import LatencySection
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.run import Run
from tests.support.children import own_children
from tests.support.stores import GONE, use_failing_stores
from tests.support.video import make_video, moving_square, overwrite_packet

FRAMES = 30
FPS = 10


@dataclass
class Result:
    """Events, summary and error of one run."""

    events: list[Event]
    error: Exception | None

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def summary(self) -> Summary:
        assert isinstance(self.events[-1], Summary)
        return self.events[-1]


def in_threads(config: Config, model: str = "FakeAnswerModel", clock: Clock | None = None) -> Run:
    return run_in_threads(config, clock, model_loader=f"tests.support.answer_models:{model}")


def run(
    config: Config,
    model: str = "FakeAnswerModel",
    on_event: Callable[[Run, Event], None] | None = None,
    *,
    fails: bool = False,
) -> Result:
    """Events of a run, which ends without an error unless it has to fail."""
    pipeline = in_threads(config, model)
    result = Result([], None)
    try:
        for event in pipeline.run():
            result.events.append(event)
            if on_event is not None:
                on_event(pipeline, event)
    except Exception as error:
        result.error = error
    assert (result.error is not None) == fails, result.error
    return result


def without_timing(events: list[Event]) -> list[dict[str, object]]:
    clocked = {"timing", "capture_ns", "ready_ns", "texture_ms", "allocate_ms"}
    return [{k: v for k, v in msgspec.to_builtins(event).items() if k not in clocked} for event in events]


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    frames = list(moving_square(FRAMES, 192, 128))
    return str(make_video(tmp_path_factory.mktemp("video") / "square.mp4", frames, FPS))


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Every run, however it ends, gives back its threads, its child and its files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    torch_threads = torch.get_num_threads()
    yield
    assert not {thread.name for thread in threading.enumerate()} & {"capture", "texture", "allocate", "answer"}
    assert own_children() == []
    assert list(tmp_path.iterdir()) == []
    assert torch.get_num_threads() == torch_threads


def configured(source: str, *, two_processes: bool = False, **sections: object) -> Config:
    sections = {"allocate": AllocateConfig(budget=12), "answer": AnswerConfig(every_s=1.0), **sections}
    pipeline = sections.pop("pipeline", PipelineConfig())
    assert isinstance(pipeline, PipelineConfig)
    pipeline = pipeline.model_copy(update={"single_process": not two_processes})
    return Config.model_validate({"source": source, "pipeline": pipeline, **sections})


def test_a_file_gives_every_frame_and_answers_at_the_answer_points(video: str) -> None:
    result = run(configured(video))
    started = result.events[0]
    assert isinstance(started, Started)
    assert (started.source, started.query, started.backend) == (video, "Say what happens.", "cpu")
    assert started.kernel == kernel_in_use()
    assert [event.frame_index for event in result.of(FrameReady)] == list(range(FRAMES))
    assert {(event.duration_s, event.slot) for event in result.of(FrameReady)} == {(0.1, None)}
    answers = result.of(Answer)
    assert [(a.answer, a.frame_index, a.trigger) for a in answers] == [
        (0, 0, "start"),
        (1, 10, "every"),
        (2, 20, "every"),
        (3, 29, "end"),
    ]
    assert [a.pts_s for a in answers] == [0.0, 1.0, 2.0, 2.9]
    assert all(a.tokens_used == 12 and a.tokens_total == 24 for a in answers)
    assert (result.summary.ended, result.summary.frames, result.summary.answers) == ("finished", FRAMES, 4)
    assert result.summary.dropped == {}


def test_an_answer_follows_the_events_of_its_frames_and_its_own_pieces(video: str) -> None:
    order = [
        event for event in run(configured(video)).events if isinstance(event, (FrameReady, AnswerDeltaEvent, Answer))
    ]
    first = next(index for index, event in enumerate(order) if isinstance(event, Answer))
    assert [type(event) for event in order[: first + 2]] == [
        FrameReady,
        AnswerDeltaEvent,
        AnswerDeltaEvent,
        Answer,
        FrameReady,
    ]
    answer = order[first]
    assert isinstance(answer, Answer)
    assert answer.text == "".join(
        e.text for e in order if isinstance(e, AnswerDeltaEvent) and e.answer == answer.answer
    )


def test_runs_give_the_same_events_in_one_process_and_in_two(video: str) -> None:
    runs = [run(configured(video, two_processes=two)) for two in (False, False, True, True)]
    first, *others = [without_timing(r.events) for r in runs]
    for other in others:
        assert other == first


def test_a_target_has_no_effect_if_every_run_must_give_the_same(video: str) -> None:
    targeted = run(configured(video, latency=LatencySection(target_ms=0.001)))
    plain = run(configured(video))
    (off,) = [event for event in targeted.of(Notice) if event.code == "target-off"]
    assert without_timing([event for event in targeted.events if event is not off]) == without_timing(plain.events)


def test_latencies_count_from_the_capture_of_the_answers_frame(video: str) -> None:
    for answer in run(configured(video)).of(Answer):
        assert answer.timing is not None
        assert 0 < answer.timing.ttft_ms <= answer.timing.total_ms
        assert (answer.timing.encode_ms, answer.timing.prefill_ms, answer.timing.decode_ms) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("encode", "tokens"), [("sparse", 12), ("incremental", 12), ("prune", 12), ("weighted", 24), ("full", 24)]
)
def test_frames_and_summary_report_the_tokens_that_the_model_gets(video: str, encode: Encode, tokens: int) -> None:
    result = run(configured(video, answer=AnswerConfig(every_s=1.0, encode=encode)))
    assert {(frame.tokens, frame.tiles) for frame in result.of(FrameReady)} == {(tokens, 24)}
    assert result.summary.mean_tokens == tokens


@pytest.mark.parametrize("two_processes", [False, True])
def test_whole_frames_reach_the_model_as_the_texture_holds_them(
    video: str, two_processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums: dict[int, int] = {}
    observe = StreamAllocator.observe

    def note(
        self: StreamAllocator, view: TextureView, motion: TileMotion | None, *limits: int | None
    ) -> FrameAllocation:
        sums[view.stamp.frame_index] = int(view.read(0).sum(dtype=np.int64))
        return observe(self, view, motion, *limits)

    monkeypatch.setattr(StreamAllocator, "observe", note)
    answer = AnswerConfig(every_s=1.0, encode="full")
    answers = run(configured(video, two_processes=two_processes, answer=answer)).of(Answer)
    assert [a.text for a in answers] == [f"frame {a.frame_index} sum {sums[a.frame_index]}" for a in answers]
    assert len({a.text.partition("sum")[2] for a in answers}) == len(answers)


def test_feedback_of_an_answer_reaches_exactly_the_frames_after_it(video: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = 0
    learnt: list[tuple[int, int]] = []
    observe, learn = StreamAllocator.observe, StreamAllocator.apply_feedback

    def count(
        self: StreamAllocator, view: TextureView, motion: TileMotion | None, *limits: int | None
    ) -> FrameAllocation:
        nonlocal frames
        frames += 1
        return observe(self, view, motion, *limits)

    def note(self: StreamAllocator, feedback: Feedback) -> None:
        learnt.append((feedback.stamp.frame_index, frames))
        learn(self, feedback)

    monkeypatch.setattr(StreamAllocator, "observe", count)
    monkeypatch.setattr(StreamAllocator, "apply_feedback", note)
    run(configured(video), "SlowAnswerModel")
    assert learnt == [(index, index + 1) for index in (0, 10, 20, 29)]
    learnt.clear()
    run(configured(video, answer=AnswerConfig(every_s=1.0, feedback=False)))
    assert not learnt, "whatever the model sends"


def test_a_cut_is_reported_and_answered_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(0)
    shots = [rng.integers(0, 256, (128, 192, 3), dtype=np.uint8) for _ in range(2)]
    frames = [shots[0]] * 7 + [shots[1]] * 6
    path = make_video(tmp_path_factory.mktemp("cut") / "cut.mkv", frames, FPS, codec="ffv1", pixel_format="yuv444p")
    result = run(configured(str(path), answer=AnswerConfig(every_s=None)))
    assert [(cut.frame_index, cut.pts_s) for cut in result.of(Cut)] == [(7, 0.7)]
    assert [(a.frame_index, a.trigger) for a in result.of(Answer)] == [(0, "start"), (7, "cut"), (12, "end")]
    assert result.summary.cuts == 1


def test_a_change_of_size_is_reported_and_answered_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sizes")
    parts = [
        make_video(folder / f"{width}.mjpeg", moving_square(count, width, 96), codec="mjpeg", pixel_format="yuvj420p")
        for width, count in ((192, 7), (128, 6))
    ]
    path = folder / "joined.mjpeg"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    result = run(configured(str(path), answer=AnswerConfig(every_s=None)))
    (change,) = result.of(PictureChanged)
    assert (change.frame_index, change.reason, change.width_px, change.height_px) == (7, "resolution", 128, 96)
    answers = [(a.frame_index, a.trigger) for a in result.of(Answer)]
    assert answers == [(0, "start"), (7, "discontinuity"), (12, "end")]
    assert (result.summary.cuts, result.summary.discontinuities) == (0, 1)


@pytest.mark.parametrize(("packet", "frames"), [(4, [0, 1, 2, 3, 3, 4]), (6, [0, 1, 2, 3, 4, 5])])
def test_skipped_frames_are_reported_with_the_next_frame_or_at_the_end(
    tmp_path_factory: pytest.TempPathFactory, packet: int, frames: list[int]
) -> None:
    path = tmp_path_factory.mktemp("broken") / "broken.avi"
    make_video(path, moving_square(6, 192, 128), FPS, codec="mjpeg", pixel_format="yuvj420p")
    result = run(configured(str(overwrite_packet(path, packet))))
    (event,) = result.of(Skipped)
    assert (event.what, event.frame_index) == (f"packet {packet}", packet - 1)
    order = [event for event in result.events if isinstance(event, (FrameReady, Skipped))]
    assert [event.frame_index for event in order] == frames
    assert result.summary.skipped == 1
    assert result.of(Answer)[-1].frame_index == 4


def test_repaired_times_are_reported_once_at_the_end(tmp_path_factory: pytest.TempPathFactory, video: str) -> None:
    path = tmp_path_factory.mktemp("back") / "back.mkv"
    frames = moving_square(5, 192, 128)
    make_video(path, frames, FPS, codec="mjpeg", pixel_format="yuvj420p", packet_pts=[0, 1, 2, 1, 4])
    (notice,) = [n for n in run(configured(str(path))).of(Notice) if n.code == "pts-repaired"]
    assert notice.message == "repaired 1 frame time from the frame rate (0 missing, 1 going back)"
    assert not [n for n in run(configured(video)).of(Notice) if n.code == "pts-repaired"]


def test_a_model_that_cannot_glance_is_reported_once_if_it_would() -> None:
    scene = configured("scene:demo", capture=CaptureConfig(max_frames=3))
    notices = [n for n in run(scene, "UnreadableAnswerModel").of(Notice) if n.code == "glances-off"]
    assert len(notices) == 1
    assert notices[0].message.endswith("name another model with -m, or give --no-glance")
    assert not [n for n in run(scene).of(Notice) if n.code == "glances-off"]


def test_a_model_of_drawn_scenes_gives_notice_on_real_video_only(video: str) -> None:
    notices = [n for n in run(configured(video), "DrawnWorldAnswerModel").of(Notice) if n.code == "model-world"]
    assert len(notices) == 1
    assert "drawn scenes" in notices[0].message
    assert "--model Qwen/Qwen3-VL-2B-Instruct" in notices[0].message
    scene = configured("scene:demo", capture=CaptureConfig(max_frames=2))
    assert not [n for n in run(scene, "DrawnWorldAnswerModel").of(Notice) if n.code == "model-world"]
    assert not [n for n in run(configured(video)).of(Notice) if n.code == "model-world"]


def test_overlays_are_published_for_sinks_that_draw_them(video: str) -> None:
    shapes, slots, runs = [], [], []

    def draw(pipeline: Run, event: Event) -> None:
        runs.append(pipeline)
        if isinstance(event, FrameReady):
            assert event.slot is not None
            slots.append(event.slot)
            if event.frame_index % 2:
                overlay = pipeline.take_overlay(event.slot)
                shapes.append((overlay.image.shape, overlay.regions.shape, overlay.relevance.shape))

    run(configured(video, heatmap=HeatmapSection(file="map.mp4")), on_event=draw)
    assert shapes == [((128, 192, 3), (12, 3), (4, 6))] * (FRAMES // 2)
    assert len(set(slots)) == FRAMES
    with pytest.raises(TransportError, match="holds nothing"):
        runs[0].take_overlay(slots[0])  # not taken, and gone with the next event


def test_a_busy_answer_stage_never_stops_the_frames_and_missed_answers_are_counted(video: str) -> None:
    policy = PipelineConfig(answers="newest")
    answer = AnswerConfig(every_s=0.1)

    def end_when_all_frames_are_seen(pipeline: Run, event: Event) -> None:
        if isinstance(event, FrameReady) and event.frame_index == FRAMES - 1:
            pipeline.cancel()

    result = run(configured(video, pipeline=policy, answer=answer), "PatientAnswerModel", end_when_all_frames_are_seen)
    assert [event.frame_index for event in result.of(FrameReady)] == list(range(FRAMES))
    assert len(result.of(Answer)) == 1
    requests, waiting = 2, 1
    assert result.summary.dropped == {"answer.busy": FRAMES - requests - waiting}


def test_ctrl_c_once_ends_what_is_in_flight_and_gives_no_further_answer(video: str) -> None:
    def end_at_the_second_answer(pipeline: Run, event: Event) -> None:
        if isinstance(event, AnswerDeltaEvent) and event.answer == 1:
            pipeline.end()

    result = run(configured(video), on_event=end_at_the_second_answer)
    assert result.summary.ended == "interrupted"
    assert [a.frame_index for a in result.of(Answer)] == [0, 10]
    assert 11 <= result.summary.frames < FRAMES


@pytest.mark.parametrize("two_processes", [False, True])
def test_ctrl_c_twice_drops_what_is_in_flight(video: str, two_processes: bool) -> None:
    def cancel_the_second_answer(pipeline: Run, event: Event) -> None:
        if isinstance(event, AnswerDeltaEvent) and event.answer == 1 and event.text == ".":
            pipeline.end()
            pipeline.cancel()

    result = run(configured(video, two_processes=two_processes), "PatientAnswerModel", cancel_the_second_answer)
    assert result.summary.ended == "cancelled"
    assert [a.frame_index for a in result.of(Answer)] == [0]


def test_ending_before_the_model_is_loaded_ends_at_once(video: str) -> None:
    result = run(configured(video), on_event=lambda pipeline, event: pipeline.end())
    assert result.summary.ended == "interrupted"
    assert result.of(Answer) == []


@pytest.mark.parametrize("two_processes", [False, True])
def test_closing_the_run_stops_everything(video: str, two_processes: bool) -> None:
    events = in_threads(configured(video, two_processes=two_processes)).run()
    assert isinstance(next(events), Started)
    events.close()


def test_an_answer_process_that_is_killed_is_named_and_earlier_answers_stay(video: str) -> None:
    result = run(configured(video, two_processes=True), "KilledAnswerModel", fails=True)
    assert isinstance(result.error, StageDied)
    assert result.error.stage == "answer"
    assert "killed by SIGKILL" in str(result.error)
    assert [a.frame_index for a in result.of(Answer)] == [0]
    assert (result.summary.ended, result.summary.error) == ("error", str(result.error))


@pytest.mark.parametrize("two_processes", [False, True])
def test_errors_of_a_model_are_named(video: str, two_processes: bool) -> None:
    result = run(configured(video, two_processes=two_processes), "BrokenAnswerModel", fails=True)
    assert isinstance(result.error, StageDied)
    assert str(result.error) == "the answer stage died: ArithmeticError: the spoon is bent"
    assert result.summary.error == str(result.error)


@pytest.mark.parametrize("two_processes", [False, True])
def test_a_model_that_cannot_be_loaded_is_the_users_to_put_right(video: str, two_processes: bool) -> None:
    result = run(configured(video, two_processes=two_processes), "open_missing", fails=True)
    assert type(result.error) is ModelNotFound
    assert str(result.error) == "there is no folder nowhere"
    assert result.summary.ended == "error"


def test_an_answer_stage_that_is_silent_for_too_long_is_named(video: str) -> None:
    policy = PipelineConfig(timeout_s=0.01)
    result = run(configured(video, pipeline=policy), "SilentAnswerModel", fails=True)
    assert str(result.error) == ("the answer stage died: silent for 0.01 s; raise pipeline.timeout_s for slow models")


@pytest.mark.parametrize(
    ("stage", "patch"),
    [
        ("texture", (TextureUpdater, "prepare")),
        ("texture", (TextureUpdater, "commit")),
        ("allocate", (StreamAllocator, "mark_answered")),
    ],
)
def test_a_stage_that_fails_is_named_and_the_others_stop(
    video: str, monkeypatch: pytest.MonkeyPatch, stage: str, patch: tuple[type, str]
) -> None:
    monkeypatch.setattr(*patch, Mock(side_effect=ZeroDivisionError("on purpose")))
    result = run(configured(video), fails=True)
    assert isinstance(result.error, StageDied)
    assert str(result.error) == f"the {stage} stage died: ZeroDivisionError: on purpose"
    assert isinstance(result.error.__cause__, ZeroDivisionError)
    assert result.summary.ended == "error"


def test_a_source_that_fails_is_the_users_to_put_right(video: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = in_threads(configured(video))

    def frames(should_stop: object) -> Iterator[object]:
        raise SourceNotFound("the disk is gone")
        yield

    monkeypatch.setattr(pipeline._worker._source, "frames", frames)
    with pytest.raises(SourceNotFound, match="the disk is gone"):
        list(pipeline.run())


def test_invalid_configurations_fail_before_anything_starts(
    video: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(SourceNotFound):
        in_threads(configured("nowhere.mp4"))
    empty = tmp_path_factory.mktemp("model")
    with pytest.raises(ModelNotFound):
        run_in_threads(configured(video, answer=AnswerConfig(model=str(empty))))


def test_a_video_that_plays_at_its_own_pace_drops_frames_that_no_stage_has_time_for(
    video: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocate stage holds the first frame until the last one has been captured; time flies."""
    last_seen = threading.Event()
    observe = StreamAllocator.observe
    pipeline = in_threads(configured(video, capture=CaptureConfig(realtime=True)), clock=FlyingClock())
    frames = pipeline._worker._source.frames

    def reported_at_the_end(should_stop: Callable[[], bool]) -> Iterator[object]:
        yield from frames(should_stop)
        last_seen.set()

    monkeypatch.setattr(pipeline._worker._source, "frames", reported_at_the_end)
    monkeypatch.setattr(
        StreamAllocator, "observe", lambda self, view, *a: last_seen.wait(10) and observe(self, view, *a)
    )
    events = list(pipeline.run())
    summary = events[-1]
    assert isinstance(summary, Summary)
    frames_dropped = {queue: count for queue, count in summary.dropped.items() if queue != "answer.busy"}
    assert summary.frames + sum(frames_dropped.values()) == FRAMES
    assert set(frames_dropped) <= {"capture.replaced", "texture.replaced"}
    assert summary.frames < 5
    assert max(event.frame_index for event in events if isinstance(event, FrameReady)) == FRAMES - 1


class FlyingClock:
    """Moves on by 100 ms whenever it is read."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        with self._lock:
            self._now_ns += 100_000_000
            return self._now_ns


class TestHardwareThatGivesUp:
    """The texture's hardware is lost in the middle of a run."""

    @pytest.fixture(autouse=True)
    def has_cuda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "stream.runtime.frame_stages.probe_backend", lambda backend: "cuda" if backend == "auto" else backend
        )

    @pytest.mark.parametrize("fails", [{"fails_writing": 7}, {"fails_reading": 0}, {"fails_reading": 30}])
    @pytest.mark.parametrize("encode", ["sparse", "prune"])
    def test_the_run_goes_on_in_the_cpu_store(
        self, video: str, monkeypatch: pytest.MonkeyPatch, fails: dict[str, int], encode: str
    ) -> None:
        answer = AnswerConfig(every_s=0.1, encode=encode)  # type: ignore[arg-type]
        undisturbed = run(configured(video, answer=answer))
        use_failing_stores(monkeypatch, **fails)
        result = run(configured(video, answer=answer))
        assert [event.frame_index for event in result.of(FrameReady)] == list(range(FRAMES))
        assert [a.frame_index for a in result.of(Answer)] == [a.frame_index for a in undisturbed.of(Answer)]
        assert [n.message for n in result.of(Notice) if n.code == STORE_LOST] == [
            f"the CPU store takes over the texture: {GONE}"
        ]
        assert (result.of(Started)[0].backend, result.summary.backend) == ("cuda", "cpu")
        assert result.summary.dropped == {"texture.fallbacks": 1}
        if encode == "prune" and "fails_reading" in fails:  # the picture is the same for any earlier choice
            assert [a.text for a in result.of(Answer)] == [a.text for a in undisturbed.of(Answer)]

    @pytest.mark.parametrize("fails", [{"fails_writing": 7}, {"fails_reading": 30}])
    def test_a_backend_that_was_asked_for_by_name_ends_the_run(
        self, video: str, monkeypatch: pytest.MonkeyPatch, fails: dict[str, int]
    ) -> None:
        use_failing_stores(monkeypatch, **fails)
        result = run(configured(video, texture=TextureConfig(backend="gl")), fails=True)
        assert isinstance(result.error, DeviceLost)
        assert str(result.error).startswith(GONE)
        assert not [n for n in result.of(Notice) if n.code == STORE_LOST]
        assert (result.summary.ended, result.summary.backend) == ("error", "gl")

    def test_hardware_that_is_lost_before_the_run_is_reported_at_its_beginning(
        self, video: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stream.runtime.frame_stages.probe_backend", Mock(side_effect=DeviceLost(GONE)))
        result = run(configured(video))
        started, _, notice = result.events[:3]
        assert isinstance(started, Started)
        assert isinstance(notice, Notice)
        assert (started.backend, notice.code, result.summary.backend) == ("cpu", STORE_LOST, "cpu")
        with pytest.raises(DeviceLost):
            run_in_threads(configured(video, texture=TextureConfig(backend="cuda")))
