"""Runs whose answer stage lies: they end with one clear error or go on, with their frames, and soon."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stream.config import AllocateConfig, AnswerConfig, CaptureConfig, Config, OutputConfig, PipelineConfig
from stream.errors import StageDied
from stream.events import PEER_MISBEHAVES, Answer, AnswerDeltaEvent, Event, FrameReady, Notice, Summary
from stream.protocol.messages import AnswerDelta, encode
from stream.runtime.frame_stages import run_in_threads
from stream.untrusted import PIECES_MAX
from tests.hostile.liar import lying
from tests.hostile.lies import LIES, LOOKS, answered, lie

GROWTH_MAX_BYTES = 250 << 20
"""Both ends are in this process, and the lies of 40 MB with them."""

pytestmark = pytest.mark.growth_max_bytes(GROWTH_MAX_BYTES)

FRAMES = 12


def config(endpoint: str, *, live: bool = False, size: str = "128x96", **sections: object) -> Config:
    return Config(
        source="scene:moving",
        answer=AnswerConfig(server=endpoint, query="What?", every_s=0.2),
        capture=CaptureConfig(max_frames=FRAMES, size=size, realtime=live),
        pipeline=PipelineConfig(restart=True) if live else PipelineConfig(),
        **sections,  # type: ignore[arg-type]
    )


def run(run_config: Config) -> tuple[list[Event], StageDied | None]:
    events: list[Event] = []
    try:
        events += run_in_threads(run_config).run()
    except StageDied as error:
        return events, error
    return events, None


@pytest.mark.parametrize("name", LIES)
def test_a_lie_ends_a_run_in_one_line_or_is_survived(name: str) -> None:
    with lying(LIES[name]) as liar:
        run_config = config(liar.endpoint, live=name in ("answers to others", "what only clients say"))
        events, error = run(run_config)
        assert liar.packets
    if error is not None:
        assert len(str(error)) < 5_000
    assert sum(isinstance(event, Notice) and event.code == PEER_MISBEHAVES for event in events) <= 6
    frames = [event for event in events if isinstance(event, FrameReady)]
    assert frames
    assert not [event for event in events if isinstance(event, Answer) and event.query != "What?"]


@pytest.mark.parametrize("name", ["an answer of 40 MB", "a part of 40 MB", "invalid numbers", "nonsense"])
def test_if_the_truth_follows_a_lie_every_answer_comes(name: str, tmp_path: Path) -> None:
    """A captioning run asks again after an invalid answer, and its files hold true answers only."""
    path = tmp_path / "a.jsonl"
    with lying(LIES[name], honest_after=1) as liar:
        events, error = run(config(liar.endpoint, output=OutputConfig(paths=(str(path),))))
    if name in ("a part of 40 MB",):
        assert error is None
    if error is None:
        answers = [event for event in events if isinstance(event, Answer)]
        assert [event.text for event in answers] == ["well"] * len(answers)
        assert answers
        assert sum(isinstance(event, FrameReady) for event in events) == FRAMES
    else:
        assert "at most" in str(error) or "cannot be read" in str(error) or "were invalid" in str(error)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", LOOKS)
def test_a_lie_about_an_overview_is_survived(name: str, live: bool) -> None:
    with lying(lambda number: [answered(number)], look=LOOKS[name]) as liar:
        events, error = run(config(liar.endpoint, live=live, size="256x192", allocate=AllocateConfig(budget=24)))
        assert liar.overviews
    assert error is None
    assert [event for event in events if isinstance(event, FrameReady)]
    assert {event.text for event in events if isinstance(event, Answer)} == {"well"}


def test_a_flood_of_texts_costs_no_frame() -> None:
    """Frames do not wait for texts, and no more text is passed on than an answer may have."""
    too_many = 600

    def flood(number: int) -> list[list[bytes]]:
        piece = [encode(AnswerDelta(answer=number, text="ab"))]
        return [piece] * (PIECES_MAX + too_many) + [answered(number)]

    with lying(flood, honest_after=1) as liar:
        run_config = config(liar.endpoint)
        events, error = run(run_config.model_copy(update={"pipeline": PipelineConfig(answers="newest")}))
    assert error is None
    assert [event.frame_index for event in events if isinstance(event, FrameReady)] == list(range(FRAMES))
    assert sum(isinstance(event, AnswerDeltaEvent) for event in events) == PIECES_MAX
    (notice,) = (event for event in events if isinstance(event, Notice) and event.code == PEER_MISBEHAVES)
    assert f"more than {PIECES_MAX} pieces" in notice.message
    assert isinstance(events[-1], Summary)
    assert events[-1].dropped["answer.refused"] == too_many


@pytest.mark.parametrize("count", [2_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_random_lies_never_end_in_anything_but_an_answer_or_one_error(count: int) -> None:
    rng = random.Random(11)
    lies = 0
    while lies < count:
        with lying(
            lambda number: [*(message for _ in range(200) for message in lie(rng, number)), answered(number)]
        ) as liar:
            events, error = run(config(liar.endpoint))
            assert liar.messages
            lies += liar.messages
        assert error is not None or isinstance(events[-1], Summary)
        assert all(event.query == "What?" for event in events if isinstance(event, Answer))
