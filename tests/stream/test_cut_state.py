"""A cut resets everything that remembers: every attribute of every object of a run is looked at.

One run sees a shot until that has left its traces, and then the first frame of another one. Another run begins with
that frame, under the same number, time and epoch. What the first run has then and the second has not is of the shot
before: a value that it had before the cut, and any array. Not seen is state in objects of libraries (OpenCV, ZeroMQ),
counters that go on, and a value that the new shot's own first answer has replaced.
"""

from __future__ import annotations

import ast
import itertools
import json
import queue
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch

from arr_coc.texture.kernels import SETTING
from arr_coc.types import NS_PER_S, FramePlanes
from stream.answer.model import Packet
from stream.answer.scheduler import AnswerScheduler
from stream.config import AllocateConfig, AnswerConfig, Config, MemoryConfig, PipelineConfig, WatchConfig, ZoneConfig
from stream.events import Cut, Event, Match, Notice, YesNoResult
from stream.extensions.detections.feed import DetectionAddress, DetectionFeed
from stream.extensions.history.section import HistorySection
from stream.media import Source, SourceFrame, SourceInfo
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.plan import RunPlan
from tests.support.answer_models import MemoryAnswerModel
from tests.support.clock import FakeClock
from tests.support.object_state import ObjectState, Value

ROOT = Path(__file__).resolve().parents[2]
ROWS, COLS = 6, 8
SHOT = 8
"""Number of frames of the first shot; the cut is the frame after them."""

VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "default": ({}, ""),
    "full40 and evs": ({"channels": "full40", "strategy": "evs"}, ""),
    "without compiled kernels": ({}, "reference"),
}
"""Options of allocation, and the value of ARR_COC_KERNEL."""

KEPT = {
    # of the run, whatever it shows
    "RunStatistics": "statistics of the run",
    "RunTotals": "statistics of the run",
    "FrameReady": "the first and the newest frame, for the statistics of the run",
    "ServerStatistics": "statistics of the server",
    "ServerTotals": "statistics of the server",
    "StageThread": "numbers of threads",
    "Mailbox._credits": "credits on their way between stages",
    "ArrayPool._addresses": "places in memory",
    "ArrayPool._arrays": "arrays by shape, to be written before they are read",
    "ClientTable._clients": "names of clients, which are random",
    "AnswerServer._keep_alive_ns": "time of the last sign of life",
    "IdleWork._counted_ns": "time up to which idle time is counted",
    "SilenceTimer._updated_ns": "time of the last look at the server",
    "RunControl._seen_s": "times of the last signs of life of the stages",
    "RunContinuity._drops": "counts of drops, which come by the clock",
    # of a watch: a yes goes on until its own shot's checks change it, and has one match (docs/watch.md)
    "DebouncedVerdict.verdict": "goes on; is_of_shot is false, so that no hold begins and nothing matches",
    "Watch._matched": "a yes that goes on has had its match",
    "RunContinuity._verdicts_reported": "changes are reported against the last verdict",
    "WatchProgress._by_name": "names of watches with a verdict",
    "WatchState.verdict": "as DebouncedVerdict.verdict, for the next frame process",
    "WatchState.matched": "as Watch._matched, for the next frame process",
    # of the texture
    "SceneCutDetector._history": "a picture that comes back within five frames is a flash, and no cut",
    "Thumbnail": "the pictures in SceneCutDetector._history",
    "TileBox": "of the mask and the size of the picture",
    "VisibleCutDetector._visible": "of the mask and the size of the picture",
    "CompiledTexture._rest": "scratch of the kernel, written before it is read",
    "CompiledMotion.layout": "of the source; this estimator is made with the second frame of a run",
    "CompiledMotion.texel_px": "of the source, as layout",
    "CompiledMotion.texels": "of the source, as layout",
    "CompiledMotion._masked": "of the mask and the size of the picture",
    "CompiledMotion._flow_mask": "scratch of one search",
    "CompiledMotion._motion": "place in memory",
    "CompiledMotion._new": "scratch of one search; _has_previous is false, so that the next one begins anew",
    "CompiledMotion._old": "scratch of one search, as _new",
    "CompiledMotion._vectors": "scratch of one search, as _new",
    "ReferenceMotion._masked": "as CompiledMotion._masked",
    "ReferenceMotion.layout": "as CompiledMotion.layout",
    "ReferenceMotion.texel_px": "as CompiledMotion.layout",
    "ReferenceMotion.texels": "as CompiledMotion.layout",
    "FlowSearch._texels": "of the source, as CompiledMotion.layout",
    # of detections
    "DetectionFeed._newest_ns": "messages that are older than one that was read are left out",
    "ThingTracker._numbers": "a number for each label; tracks have numbers, and there are none left",
    # of the answer
    "GroupWatch._is_reported": "a notice comes once",
    "GroupPlace.frame": "in SentGroup.server_place",
    "GroupPlace.group": "in SentGroup.server_place: what the server had at the last turn, which the next one replaces",
}
"""What a cut leaves fresh, as "Class.attribute", or "Class" for all of its attributes, and why that is right."""

SEEN = "seen"
"""Code of a notice after all events of a frame."""

INFO = SourceInfo("shots", 32 * COLS, 32 * ROWS, 1.0, None, None, live=False, codec="", pixel_format="rgb24")
MODEL = f"{__name__}:WatchingModel"


class WatchingModel(MemoryAnswerModel):
    """Is sure of the one thing in the first shot, and unsure of the other from the last frame of that on."""

    can_glance = True

    def score_yes_no(self, packet: Packet, query: str) -> tuple[float, float]:
        super().score_yes_no(packet, query)
        index = packet.stamp.frame_index
        if query == "is it sure?":
            return (0.99 if index < SHOT else 0.5), 1.0
        return (0.8 if index >= SHOT - 1 else 0.01), 1.0


def unrelated(seed: int) -> npt.NDArray[np.uint8]:
    """A picture of patches, which resembles that of no other seed: uint8 [h, w, 3]."""
    patches = np.random.default_rng(seed).integers(0, 200, (3 * ROWS, 3 * COLS, 3), dtype=np.uint8)
    picture = cv2.resize(patches, (32 * COLS, 32 * ROWS), interpolation=cv2.INTER_NEAREST)
    return np.asarray(picture, np.uint8)


class ShotSource(Source):
    """Source whose frames the test hands over one by one."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._frames: queue.Queue[SourceFrame] = queue.Queue()
        self._has_begun = False

    def describe(self) -> SourceInfo:
        return INFO

    def show(self, index: int) -> None:
        """Hand over the next frame, `index` seconds after the time zero."""
        picture = unrelated(index // SHOT)
        left = 16 + 24 * (index % SHOT)  # a thing moves
        picture[64:112, left : left + 48] = 255
        now_ns = (100 + index) * NS_PER_S
        self._clock.advance(now_ns - self._clock.now_ns())
        planes = FramePlanes("rgb", (np.roll(picture, 4 * max(0, index % SHOT - 4), axis=1),))  # and then the camera
        discontinuity = None if self._has_begun else "start"
        self._has_begun = True
        self._frames.put(SourceFrame(index, now_ns, now_ns, planes, discontinuity))

    def frames(self, should_stop: Callable[[], bool] = lambda: False) -> Iterator[SourceFrame]:
        while not should_stop():
            try:
                yield self._frames.get(timeout=0.02)
            except queue.Empty:
                continue


class Detector:
    """Socket of a program that sees a thing in the first shot."""

    is_lost = is_refused = False

    def __init__(self) -> None:
        self.messages: list[list[memoryview]] = []

    def say(self, index: int) -> None:
        left = index / (2 * SHOT)
        box = {"box": [left, 0.2, left + 0.3, 0.7], "label": "cat", "score": 0.75}
        self.messages.append([memoryview(json.dumps({"objects": [box]}).encode())])

    def receive(self, timeout_ms: int) -> tuple[list[memoryview] | None, int]:
        return (self.messages.pop(0) if self.messages else None), 0

    def close(self) -> None:
        pass


class ShotRun:
    """Run with everything that remembers, whose frames come one by one. Its epochs count from `epoch`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, epoch: int, **allocate: Any) -> None:
        torch.manual_seed(0)  # weights of the untrained allocator
        self.clock = FakeClock(100 * NS_PER_S)
        self.source, self.detector = ShotSource(self.clock), Detector()
        self.events: list[Event] = []
        epochs = itertools.count(epoch)
        monkeypatch.setattr("arr_coc.video.texture_updater.new_epoch", lambda: next(epochs))
        monkeypatch.setattr("stream.runtime.frame_stages.open_source", lambda *_: self.source)
        address = DetectionAddress("zmq+tcp://detector:1", "tcp://detector:1", None, 2.0)
        feed = DetectionFeed(address, self.clock, self.clock.now_ns)
        connect = feed.open
        monkeypatch.setattr(feed, "open", lambda: connect(lambda: self.detector))
        monkeypatch.setattr(RunPlan, "make_box_feed", lambda *_: feed)
        observe = AnswerScheduler.observe

        def noting(scheduler: AnswerScheduler, stamp: Any, *arguments: Any, **options: Any) -> None:
            observe(scheduler, stamp, *arguments, **options)
            scheduler._observer.on_event(Notice(code=SEEN, message=f"{stamp.frame_index}"))

        monkeypatch.setattr(AnswerScheduler, "observe", noting)
        config = Config(
            source="shots",
            allocate=AllocateConfig(budget=12, **allocate),
            answer=AnswerConfig(every_s=2.0, captions=True, zone="door", memory=MemoryConfig(enabled=True, idle=1.0)),
            history=HistorySection(answers=4),
            zones={
                "door": ZoneConfig(box=(0.0, 0.0, 0.75, 1.0)),
                "light": ZoneConfig(box=(0.0, 0.0, 0.25, 1.0), weight=2.0),
                "hidden": ZoneConfig(box=(0.9, 0.9, 1.0, 1.0), mask=True),
            },
            watch=(
                WatchConfig(question="is it sure?", name="sure", hold_s=20, zone="door"),
                WatchConfig(question="is it unsure?", name="unsure", zone="door"),
            ),
            pipeline=PipelineConfig(single_process=True),
        )
        self.run = run_in_threads(config, self.clock, model_loader=MODEL)
        self._received = self.run.run()

    def show(self, index: int) -> None:
        """Show a frame, and wait until the run is done with it."""
        self.source.show(index)
        for event in self._received:
            self.events.append(event)
            if event == Notice(code=SEEN, message=f"{index}"):
                return

    def state(self) -> ObjectState:
        return ObjectState.reached_from(self.run)

    def close(self) -> None:
        self._received.close()


NOTHING = Value(("NoneType", None))


@dataclass(frozen=True)
class ShotStates:
    """State of a run before and after a cut, that of a run that begins with the cut's frame, and the events of the
    first one."""

    before: ObjectState
    after: ObjectState
    fresh: ObjectState
    events: list[Event]

    @property
    def stale_names(self) -> list[str]:
        """Attributes that have something of the shot before."""
        names = []
        for name, values in self.after.values.items():
            unknown = values - self.fresh.of(name) - {NOTHING}
            if unknown & self.before.of(name) or any(value.is_array for value in unknown):
                names.append(name)
        return sorted(names)


@pytest.fixture(scope="module", params=VARIANTS)
def states(request: pytest.FixtureRequest) -> ShotStates:
    allocate, kernel = VARIANTS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        if kernel:
            patch.setenv(SETTING, kernel)
        with closing(ShotRun(patch, epoch=1, **allocate)) as run:
            for index in range(SHOT):
                run.detector.say(index)
                run.show(index)
            before = run.state()
            run.show(SHOT)
            after = run.state()
    with pytest.MonkeyPatch.context() as patch:
        if kernel:
            patch.setenv(SETTING, kernel)
        with closing(ShotRun(patch, epoch=2, **allocate)) as other:
            other.show(SHOT)
            fresh = other.state()
    return ShotStates(before, after, fresh, run.events)


def test_the_first_shot_leaves_its_traces(states: ShotStates) -> None:
    """Otherwise there would be nothing to reset."""
    assert [event.frame_index for event in states.events if isinstance(event, Cut)] == [SHOT]
    assert states.after.of("FrameStamp.epoch") == states.fresh.of("FrameStamp.epoch")
    for name in (
        *("DetectedBoxes.boxes", "ThingTracker._boxes", "StreamAllocator._floor", "PastAnswer.text"),
        *("Watch._yes_since_ns", "GlancePolicy._done_ns", "GroupFrame.regions"),
        *("_FeedbackMaps.values", "MotionHistory._motions", "_Past.output", "TokenPacket.pixels"),
    ):
        assert states.before.of(name) - states.fresh.of(name), name
    assert Value(("bool", True)) in states.before.of("DebouncedVerdict._unconfirmed")


def test_a_cut_leaves_nothing_of_the_shot_before(states: ShotStates) -> None:
    stale_names = [name for name in states.stale_names if name not in KEPT and name.partition(".")[0] not in KEPT]
    remedy = "reset what these hold at a new epoch, or add them to KEPT with the reason"
    assert not stale_names, f"{', '.join(stale_names)}: {remedy}"


def test_no_watch_matches_with_the_first_frame_of_the_next_shot(states: ShotStates) -> None:
    """One holds a yes that the next shot neither confirms nor denies, one an unconfirmed yes, which that repeats."""
    assert {event.watch for event in states.events if isinstance(event, YesNoResult) and event.frame_index == SHOT} == {
        "sure",
        "unsure",
    }
    assert not any(isinstance(event, Match) for event in states.events)


def attributes_in_code() -> dict[str, set[str]]:
    """Names of the attributes that the code of each class of the product gives to its instances."""
    names_by_class: dict[str, set[str]] = {}
    for path in (path for package in ("stream", "arr_coc") for path in (ROOT / package).rglob("*.py")):
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(item, ast.ClassDef):
                continue
            names = names_by_class.setdefault(item.name, set())
            bases = [base.id for base in item.bases if isinstance(base, ast.Name)]
            names.update(f"of {base}" for base in bases)
            for part in ast.walk(item):
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                    names.add(part.attr)
                elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    names.add(part.target.id)
    return names_by_class


def test_attributes_that_a_cut_keeps_exist() -> None:
    attributes = attributes_in_code()

    def exists(name: str, attribute: str) -> bool:
        class_names = attributes.get(name, set())
        bases = [item.removeprefix("of ") for item in class_names if item.startswith("of ")]
        return attribute in class_names or any(exists(base, attribute) for base in bases)

    for entry in KEPT:
        name, _, attribute = entry.partition(".")
        assert name in attributes, f"there is no class {name} any more"
        assert not attribute or exists(name, attribute), f"there is no {entry} any more"
