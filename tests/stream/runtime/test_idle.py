"""Runs whose model reads ahead between answers: in this process, with the bundled model and a tiny one of the Qwen
family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.allocation.group import GroupOfPictures
from arr_coc.types import GroupPlace, TokenPacket
from stream.config import AllocateConfig, AnswerConfig, CaptureConfig, Config, MemoryConfig, PipelineConfig
from stream.events import Answer, Event, FrameReady, Summary
from stream.runtime.frame_stages import run_in_threads
from tests.stream.runtime.test_answer_worker import without_clock
from tests.support.models import tiny_folder
from tests.support.video import make_still_video, make_video

TILES = 4 * 6
BUDGET = 6
QUIET_FRAMES = 10
"""Frames in which nothing more is read ahead; some of them are answered about."""


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One picture for minutes; a test ends it sooner."""
    picture = np.random.default_rng(0).integers(0, 256, (128, 192, 3), dtype=np.uint8)
    return str(make_video(tmp_path_factory.mktemp("video") / "still.mp4", [picture] * 1500, 5))


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tile changes every three seconds, the rest is still."""
    return str(make_still_video(tmp_path_factory.mktemp("video") / "changing.mp4", (0, 120, 250), 30))


@pytest.fixture(params=["bundled", "tiny"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "bundled" else str(tiny_folder(tmp_path / "tiny"))


def config(video: str, model: str | None, *, idle: float, realtime: bool = False, **memory: Any) -> Config:
    return Config(
        source=video,
        capture=CaptureConfig(open_timeout_s=5.0, realtime=realtime),
        allocate=AllocateConfig(budget=BUDGET),
        answer=AnswerConfig(
            model=model,
            every_s=1.0,
            max_tokens=4,
            memory=MemoryConfig(enabled=True, tokens=512, idle=idle, **memory),
        ),
        pipeline=PipelineConfig(single_process=True),
    )


def answers_of(events: list[Event]) -> list[Answer]:
    return [event for event in events if isinstance(event, Answer)]


class Reports:
    """Idle packets of a group of pictures, and what the group had when the model had read them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packets: list[TokenPacket] = []
        self.group: GroupOfPictures | None = None
        make, end = GroupOfPictures.idle_packet, GroupOfPictures.on_idle_end

        def idle_packet(group: GroupOfPictures, *arguments: Any) -> TokenPacket | None:
            packet = make(group, *arguments)
            self.packets += [] if packet is None else [packet]
            return packet

        def on_idle_end(group: GroupOfPictures, place: GroupPlace | None, *, rebuilt: bool = False) -> None:
            end(group, place, rebuilt=rebuilt)
            self.group = group

        monkeypatch.setattr(GroupOfPictures, "idle_packet", idle_packet)
        monkeypatch.setattr(GroupOfPictures, "on_idle_end", on_idle_end)

    @property
    def is_complete(self) -> bool:
        """True if the group shows all tiles, side by side."""
        newest = None if self.group is None else self.group.newest
        return newest is not None and newest.is_complete and not newest.is_patched


def test_of_a_still_scene_all_is_read_and_then_nothing_more(
    still: str, model: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports, events = Reports(monkeypatch), []
    run = run_in_threads(config(still, model, idle=1.0, realtime=True))
    frames_after, packets_read = 0, 0
    for event in run.run():
        events.append(event)
        if isinstance(event, FrameReady) and reports.is_complete:
            frames_after += 1
            packets_read = packets_read or len(reports.packets)
            if frames_after == QUIET_FRAMES:
                run.end()
    assert frames_after >= QUIET_FRAMES
    assert len(reports.packets) == packets_read > 1
    assert reports.group is not None
    newest = reports.group.newest
    assert newest is not None
    assert (newest.held_tokens, int(newest.areas.max())) == (TILES, 0)
    answers, summary = answers_of(events), events[-1]
    assert answers[-1].tokens_used == TILES
    assert answers[-1].appended_tokens == 0
    assert isinstance(summary, Summary)
    assert summary.memory is not None
    assert summary.memory.idle is not None
    assert summary.memory.idle.tokens >= sum(len(packet.regions) for packet in reports.packets[-2:])


@pytest.mark.parametrize("patch", [False, True])
def test_a_file_is_captioned_twice_with_the_same_answers(changing: str, model: str | None, patch: bool) -> None:
    runs = []
    for _ in range(2):
        events = list(run_in_threads(config(changing, model, idle=0.5, patch=patch)).run())
        runs.append(without_clock(answers_of(events)))
    assert runs[0] == runs[1]
    tokens = [answer["idle_tokens"] for answer in runs[0]]
    assert sum(tokens) > TILES
    assert max(answer["tokens_used"] for answer in runs[0]) > BUDGET, "what was read ahead is in view"
    assert sum(answer["rebuilt"] for answer in runs[0]) > 0


def test_without_a_share_of_the_time_nothing_is_read_ahead(changing: str, model: str | None) -> None:
    events = list(run_in_threads(config(changing, model, idle=0.0)).run())
    assert {answer.idle_tokens for answer in answers_of(events)} == {0}
    summary = events[-1]
    assert isinstance(summary, Summary)
    assert summary.memory is not None
    assert summary.memory.idle is None
