"""Answers that are checked by another one about the whole frame."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from arr_coc.types import FramePacket
from evaluation.suites import suite_samples
from stream.answer.filters import AnswerFilter, FinishedAnswer
from stream.answer.request import ClientOptions
from stream.cli import main
from stream.config import (
    AllocateConfig,
    AnswerConfig,
    CaptureConfig,
    Config,
    GlanceConfig,
    MemoryConfig,
    PipelineConfig,
)
from stream.config_loading import ConfigLayer, build_config
from stream.display.lines import figures_text
from stream.display.text import EventText, summary_text
from stream.errors import ConfigError
from stream.events import (
    Answer,
    AnswerDeltaEvent,
    BudgetChanged,
    Notice,
    ShadowCheck,
    ShadowSummary,
    Summary,
    YesNoResult,
)
from stream.extensions.api.section import ApiSection
from stream.extensions.live.layout import figure_rows
from stream.extensions.shadow.budget import LOW
from stream.extensions.shadow.checks import ShadowChecks
from stream.extensions.shadow.section import ShadowSection
from stream.monitor.statistics import RunStatistics
from stream.protocol.buffers import SharedFrameReader, SharedFrameWriter
from stream.protocol.codec import frame_packet
from stream.protocol.messages import (
    AnswerDelta,
    FramePacketMessage,
    TokenPacketMessage,
    TurnGrant,
    TurnRequest,
)
from stream.runtime.frame_stages import run_in_threads
from tests.stream.answer.test_client import clock, opened
from tests.stream.runtime.test_answer_worker import continued
from tests.stream.runtime.test_pipeline import configured, run, without_timing
from tests.support import answer_models, api_server
from tests.support.answer_client import ClientFixture, Opener, answered, tokens, whole_frame
from tests.support.api_server import ApiHandler
from tests.support.clock import FakeClock
from tests.support.events import answer
from tests.support.figures import FIGURES
from tests.support.video import make_video, moving_square

__all__ = ["clock", "opened"]


def asked_with_shadow(server: ClientFixture, turn: int = 1) -> FramePacket:
    """An answer is asked for, and given, that is to be checked."""
    shadow = whole_frame()
    server.grant(turn)
    server.send(tokens(), "every", full_frame=shadow)
    server.expect(TokenPacketMessage)
    return shadow


def test_the_check_follows_its_answer_in_a_separate_turn(opened: Opener) -> None:
    server = opened()
    shadow = asked_with_shadow(server)
    (reported,) = server.hear(answered(0))
    assert isinstance(reported, Answer)
    server.expect(TurnRequest)
    assert server.client.busy
    assert not server.client.may_send
    server.hear(TurnGrant(turn=2))
    message, received = server.expect_whole(FramePacketMessage)
    assert (message.answer, message.turn) == (0, 2)
    np.testing.assert_array_equal(frame_packet(message, received.parts).image, shadow.image)
    assert server.hear(AnswerDelta(answer=0, text="all of")) == []
    (check,) = server.hear(answered(0))
    assert check == ShadowCheck(
        answer=0,
        frame_index=5,
        pts_s=2.5,
        query="what?",
        text="all of it",
        full_text="all of it",
        same=True,
        words=1.0,
        tokens_used=2,
        tokens_full=2,
    )
    assert not server.client.busy
    assert server.ask(turn=3) == 1


def test_the_frame_lies_in_the_snapshot_if_there_is_one(opened: Opener) -> None:
    writer = SharedFrameWriter()
    try:
        server = opened(snapshot=writer)
        shadow = asked_with_shadow(server)
        server.hear(answered(0))
        server.expect(TurnRequest)
        server.hear(TurnGrant(turn=2))
        assert server.expect_whole(FramePacketMessage)[0].in_snapshot
        np.testing.assert_array_equal(SharedFrameReader(writer.descriptor).read(64, 64), shadow.image)
    finally:
        writer.close()


def test_a_check_that_is_lost_is_no_lost_answer(opened: Opener) -> None:
    server = opened(reconnect=True)
    asked_with_shadow(server)
    server.hear(answered(0))
    server.expect(TurnRequest)
    server.lose()
    assert not server.client.busy
    assert server.client.requests.lost_answers == 0


def test_in_lockstep_a_check_is_repeated_by_the_successor(opened: Opener) -> None:
    server = opened(reconnect=True, resend_after_loss=True)
    asked_with_shadow(server)
    server.hear(answered(0))
    server.expect(TurnRequest)
    server.lose()
    server.greet()
    server.expect(TurnRequest)
    server.hear(TurnGrant(turn=1))
    server.expect(FramePacketMessage)
    (check,) = server.hear(answered(0))
    assert isinstance(check, ShadowCheck)


@pytest.mark.parametrize("two_processes", [False, True])
@pytest.mark.parametrize("encode", ["sparse", "prune"])
def test_one_in_n_answers_is_checked_and_nothing_else_changes(
    tmp_path_factory: pytest.TempPathFactory, two_processes: bool, encode: Any
) -> None:
    video = str(make_video(tmp_path_factory.mktemp("v") / "a.mp4", list(moving_square(12, 192, 128)), 10))
    plain, checked = (
        run(
            configured(
                video,
                two_processes=two_processes,
                answer=AnswerConfig(every_s=0.3, encode=encode),
                shadow=ShadowSection(every=interval),
            )
        )
        for interval in (None, 2)
    )
    shadows = checked.of(ShadowCheck)
    assert [shadow.answer for shadow in shadows] == [1, 3]
    assert [shadow.frame_index for shadow in shadows] == [3, 9]
    assert {shadow.tokens_full for shadow in shadows} == {24}
    for shadow in shadows:
        before = checked.events[checked.events.index(shadow) - 1]
        assert isinstance(before, Answer)
        assert (before.answer, before.text, before.tokens_used) == (shadow.answer, shadow.text, shadow.tokens_used)
        assert shadow.full_text.startswith(f"frame {shadow.frame_index} sum ")
        assert len(checked.of(AnswerDeltaEvent)) == len(plain.of(AnswerDeltaEvent))
    is_same = encode == "prune"  # the model reads the frame, and says the same
    rest = [event for event in checked.events if not isinstance(event, (ShadowCheck, Summary))]
    assert without_timing(rest) == without_timing(plain.events[:-1])
    assert checked.summary.shadow == ShadowSummary(
        checks=2, same=2 * is_same, differing=2 * (not is_same), raises=0, lowers=0
    )
    assert plain.summary.shadow is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("answer.encode", "full", "answer.encode = full gives already"),
        ("answer.memory.frames", 2, "leave answer.memory.frames at 1"),
        ("watch", ["is it?"], "leave watches out"),
    ],
)
def test_options_that_do_not_go_with_checks_are_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^x: shadow.every compares .*{message}"):
        build_config([ConfigLayer("x", {"shadow.every": 5}), ConfigLayer("y", {key: value})])
    with pytest.raises(ConfigError, match=r"shadow\.every should be 1 or more, or be none, got 0"):
        build_config([ConfigLayer("x", {"shadow.every": 0})])


def acting(source: str, **shadow: Any) -> Config:
    rule = {"every": 1, "act": True, "window": 4, "agreeing": 3, **shadow}
    return configured(source, answer=AnswerConfig(every_s=0.2), shadow=ShadowSection(**rule))


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> str:
    frames = list(moving_square(30, 192, 128))
    return str(make_video(tmp_path_factory.mktemp("v") / "a.mp4", frames, 10))


@pytest.mark.parametrize("two_processes", [False, True])
def test_the_budget_rises_until_answers_agree_and_falls_again(moving: str, two_processes: bool) -> None:
    """The model says the sum of the pixels that it is shown: it is that of the whole frame with all 24 tokens."""
    config = acting(moving)
    pipeline = config.pipeline.model_copy(update={"single_process": not two_processes})
    result = run(config.model_copy(update={"pipeline": pipeline}))
    changes = result.of(BudgetChanged)
    assert [(change.from_tokens, change.to_tokens, change.reason) for change in changes[:4]] == [
        (12, 18, "differ"),
        (18, 24, "differ"),
        (24, 18, "agree"),
        (18, 24, "differ"),
    ]
    assert [change.answer for change in changes[:4]] == [1, 3, 6, 8]
    tokens = [answer.tokens_used for answer in result.of(Answer)]
    assert tokens[:10] == [12, 12, 18, 18, 24, 24, 24, 18, 18, 24]
    for change in changes:
        check = result.events[result.events.index(change) - 1]
        assert isinstance(check, ShadowCheck)
        assert (check.answer, check.differs) == (change.answer, change.reason == "differ")
    summary = result.summary.shadow
    assert summary is not None
    assert (summary.checks, summary.raises, summary.lowers) == (len(tokens), 3, 2)
    assert summary.differing == sum(check.differs for check in result.of(ShadowCheck))
    repeat = run(config)
    assert without_timing(repeat.of(BudgetChanged)) == without_timing(changes)


def test_at_its_limit_it_raises_an_alarm(moving: str) -> None:
    config = acting(moving).model_copy(update={"allocate": AllocateConfig(budget=12, max_tokens=18, min_tokens=4)})
    result = run(config)
    (change,) = result.of(BudgetChanged)
    (alarm,) = (event for event in result.of(Notice) if event.code == LOW)
    assert (change.to_tokens, "the budget of 18 tokens is too small and its limit is reached" in alarm.message) == (
        18,
        True,
    )
    assert isinstance(result.events[result.events.index(alarm) - 1], ShadowCheck)


def test_without_acting_there_is_the_alarm_alone(moving: str) -> None:
    result = run(acting(moving, act=False))
    assert not result.of(BudgetChanged)
    (alarm,) = (event for event in result.of(Notice) if event.code == LOW)
    assert alarm.message.endswith("raise --budget, or give --shadow-act")
    assert {answer.tokens_used for answer in result.of(Answer)} == {12}


def test_of_an_adaptive_budget_the_limit_rises(moving: str) -> None:
    allocate = AllocateConfig(budget="adaptive", min_tokens=4, max_tokens=8)
    result = run(acting(moving, most=2.0).model_copy(update={"allocate": allocate}))
    assert [(change.from_tokens, change.to_tokens) for change in result.of(BudgetChanged)] == [(8, 12), (12, 16)]
    tokens = [answer.tokens_used for answer in result.of(Answer)]
    assert max(tokens[:2]) <= 8 < max(tokens) <= 16


def test_a_budget_that_is_too_small_for_a_word_rises_until_it_is_read(tmp_path: Path) -> None:
    """The bundled model and a picture of the suite `text`: "EXTRA" is read with 6 of 64 tokens now and
    then, and with 9 always."""
    sample = list(suite_samples("text", 3))[2]
    for number in range(40):
        Image.fromarray(np.asarray(sample.clip.frames[-1])).save(tmp_path / f"{number:02d}.png")
    answer = AnswerConfig(
        query=sample.question,
        every_s=0.2,
        glance=GlanceConfig(enabled=False),
        memory=MemoryConfig(enabled=False),
    )
    config = Config(
        source=str(tmp_path),
        allocate=AllocateConfig(budget=4, min_tokens=4, strategy="mixed"),
        answer=answer,
        shadow=ShadowSection(every=1, act=True, window=4, agreeing=20),
        pipeline=PipelineConfig(single_process=True),
    )
    events = list(run_in_threads(config).run())
    changes = [event for event in events if isinstance(event, BudgetChanged)]
    assert [(event.from_tokens, event.to_tokens, event.differing) for event in changes] == [(4, 6, 2), (6, 9, 2)]
    replies = [(event.tokens_used, event.text) for event in events if isinstance(event, Answer)]
    assert replies[:2] == [(4, "KTRA."), (4, "KTRA.")]
    assert replies[5:] == [(9, "EXTRA.")] * 4
    assert sample.answer == "EXTRA."
    assert all(event.full_text == sample.answer for event in events if isinstance(event, ShadowCheck))


def test_the_model_is_asked_whether_both_say_the_same(opened: Opener) -> None:
    server = opened(shadow=ShadowSection(compare="meaning", agree=0.5))
    asked_with_shadow(server)
    server.hear(answered(0))
    server.expect(TurnRequest)
    server.hear(TurnGrant(turn=2))
    message, _ = server.expect_whole(FramePacketMessage)
    assert message.question.compared == "all of it"
    (check,) = server.hear(msgspec.structs.replace(answered(0), text="everything", same=0.75))
    assert isinstance(check, ShadowCheck)
    assert (check.words, check.meaning, check.differs) == (0.0, 0.75, False)


def test_the_server_compares_answers_that_differ_in_words(moving: str) -> None:
    """The model says yes to a question about a picture with something bright; twice the words are the same."""
    result = run(acting(moving, compare="meaning", agree=0.5))
    checks = result.of(ShadowCheck)
    assert {check.meaning for check in checks if not check.same} == {0.99, 0.01}
    assert {check.meaning for check in checks if check.same} == {None}
    assert all(check.differs == (check.meaning == 0.01) for check in checks)
    assert result.of(BudgetChanged)[0].answer == [check.answer for check in checks if check.differs][1]
    assert len(result.of(Answer)) == len(checks), "no answer more, and no other check"
    assert not result.of(YesNoResult)


def test_the_bundled_model_compares_meanings() -> None:
    config = Config(
        source="scene:static",
        capture=CaptureConfig(max_frames=10),
        allocate=AllocateConfig(budget=6),
        answer=AnswerConfig(
            query="Where is the word?",
            memory=MemoryConfig(enabled=False),
        ),
        shadow=ShadowSection(every=1, compare="meaning"),
        pipeline=PipelineConfig(single_process=True),
    )
    (check, *_) = (event for event in run_in_threads(config).run() if isinstance(event, ShadowCheck))
    assert not check.same
    assert check.meaning is not None
    assert 0 < check.meaning < 1


def test_a_checked_run_that_failed_is_continued_with_the_same_checks(
    moving: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = ("window=4", "agreeing=3", "act=true", "every=1")
    arguments = [part for setting in rule for part in ("--set", f"shadow.{setting}")]
    broken, asked_frames = continued(moving, tmp_path, monkeypatch, "FakeAnswerModel", "--budget", "12", *arguments)
    assert broken.count(b'"type":"shadow"') == 5
    assert b'"budget","answer":1' in broken
    assert asked_frames == [25, 25, 29, 29], "an answer and its check each"


def test_a_run_that_failed_in_a_check_repeats_its_answer(
    moving: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[int] = []

    def fail(frame_index: int) -> None:
        frames.append(frame_index)
        if frames.count(10) == 2:
            raise ArithmeticError("the spoon is bent")

    def caption(*extra: str) -> int:
        arguments = ["--every", "0.5", "--no-timing", "--single-process", "--budget", "12", "--shadow-every", "1"]
        return main(["caption", moving, "-o", str(tmp_path / "a.jsonl"), *arguments, *extra])

    monkeypatch.setitem(run_in_threads.__kwdefaults__, "model_loader", "tests.support.answer_models:FakeAnswerModel")
    with monkeypatch.context() as patch:
        patch.setattr(answer_models, "on_packet", fail)
        assert caption() == 1
    asked_frames: list[int] = []
    monkeypatch.setattr(answer_models, "on_packet", asked_frames.append)
    assert caption("--resume") == 0
    assert asked_frames[:3] == [10, 10, 15]


def found(same: bool, words: float) -> ShadowCheck:
    texts = {"query": "?", "text": "a", "full_text": "b"}
    return ShadowCheck(
        answer=0, frame_index=0, pts_s=0.0, same=same, words=words, tokens_used=1, tokens_full=2, **texts
    )


def test_agreement_is_counted_and_shown() -> None:
    live = RunStatistics(FakeClock())
    assert (live.snapshot().checks, live.snapshot().checks_same, live.snapshot().checks_words) == (0, 0, None)
    live.add(answer(1.0, "a"))
    for event in (found(True, 1.0), found(False, 0.5)):
        live.add(event)
    figures = live.snapshot()
    assert (figures.checks, figures.checks_same, figures.checks_words) == (2, 1, 0.75)
    assert "shadow" not in dict(figure_rows(FIGURES))
    figures_with_checks = dataclasses.replace(FIGURES, checks=2, checks_same=1, checks_words=0.75)
    assert dict(figure_rows(figures_with_checks))["shadow"] == ["1 of 2 checks the same", "75 % of words"]
    assert " · shadow 1 of 2 the same · " in figures_text(figures_with_checks, "0:01.0")


def test_changes_by_checks_are_counted_and_shown() -> None:
    live = RunStatistics(FakeClock())
    raised = BudgetChanged(
        answer=1, frame_index=2, pts_s=0.5, reason="differ", from_tokens=12, to_tokens=18, differing=3, checks=8
    )
    lowered = msgspec.structs.replace(raised, reason="agree", from_tokens=18, to_tokens=12, differing=0, checks=6)
    assert (live.snapshot().budget, live.summary("finished", None, {}, "cpu").shadow) == (None, None)
    for event in (answer(1.0, "a"), msgspec.structs.replace(found(False, 0.5), differs=True), raised, lowered, raised):
        live.add(event)
    figures = live.snapshot()
    assert (figures.budget, figures.checks_differing, figures.budget_raises, figures.budget_lowers) == (18, 1, 2, 1)
    assert "budget 18, 2 raises, 1 fall" in dict(figure_rows(figures))["shadow"]
    assert "shadow 0 of 1 the same, budget 18" in figures_text(figures, "0:01.0")
    summary = live.summary("finished", None, {}, "cpu")
    assert " · 1 of 1 shadow check differ, 2 raises, 1 fall of the budget" in summary_text(summary)
    lines = EventText()
    assert lines.line(raised) == "the budget rises from 12 to 18 tokens: 3 of 8 shadow checks differ"
    assert lines.line(lowered) == "the budget falls from 18 to 12 tokens: 0 of 6 shadow checks differ"


def test_a_model_server_is_asked_with_the_whole_view_and_compares_as_well() -> None:
    """Three requests a check: the view in 12 tiles, the whole view in 240, and the question about both texts."""

    def say_otherwise(handler: ApiHandler, body: dict[str, Any]) -> None:
        asked_before = sum("logprobs" not in request for request in handler.fake.bodies)
        api_server.speak(handler, body) if "logprobs" in body or asked_before % 2 else say_blue(handler)

    def say_blue(handler: ApiHandler) -> None:
        handler.begin()
        handler.send(api_server.event("something blue"))
        handler.send(api_server.event(finish_reason="stop"))
        handler.send("[DONE]")

    with api_server.api_server() as server:
        server.behaviour = say_otherwise
        config = Config(
            source="scene:demo",
            capture=CaptureConfig(max_frames=20),
            allocate=AllocateConfig(budget=12),
            answer=AnswerConfig(
                encode="picture",
                model=api_server.MODEL,
                every_s=0.25,
            ),
            shadow=ShadowSection(every=1, compare="meaning", agree=0.5),
            api=ApiSection(url=server.url),
        )
        checks = [event for event in run_in_threads(config).run() if isinstance(event, ShadowCheck)]
        areas = [picture.shape[0] * picture.shape[1] for at in range(3) for picture in server.pictures(at)]
        (question,) = server.texts(2)
    assert [(check.text, check.full_text) for check in checks] == [("a red circle", "something blue")] * len(checks)
    assert len(server.bodies) == 3 * len(checks) >= 6
    assert question == 'Do these two answers say the same? "a red circle" and "something blue" Answer yes or no.'
    assert areas[0] < areas[1] == areas[2]
    assert {check.differs for check in checks} == {False}
    assert all(check.meaning is not None and 0.8 < check.meaning < 1 for check in checks)


class Censor(AnswerFilter):
    """A filter behind the shadow checks, which wants every frame and changes every answer."""

    def wants_full_frame(self) -> bool:
        return True

    def on_answer(self, answer: FinishedAnswer) -> None:
        answer.event = msgspec.structs.replace(answer.event, text="***")


def test_another_filter_changes_neither_how_many_are_checked_nor_what_is_compared() -> None:
    filters = (ShadowChecks(ShadowSection(every=2)), Censor())
    server = ClientFixture(FakeClock(), ClientOptions(filters=filters))
    server.greet()
    asked_with_shadow(server)
    assert [event.text for event in server.events(Answer, answered(0))] == ["***"]
    assert not server.client.busy, "one of two is checked"
    asked_with_shadow(server, 2)
    server.hear(answered(1))
    server.expect(TurnRequest)
    server.hear(TurnGrant(turn=3))
    server.expect(FramePacketMessage)
    (check,) = server.events(ShadowCheck, answered(1))
    assert check.same
    assert check.text == check.full_text != "***"
