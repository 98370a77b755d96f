"""Answers that are checked by another one about the whole frame."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.types import FramePacket
from stream.config import AnswerConfig, Config
from stream.config_loading import ConfigLayer, build_config
from stream.display.layout import figure_rows
from stream.display.lines import figures_text
from stream.errors import ConfigError, ResumeError
from stream.events import Answer, AnswerDeltaEvent, ShadowCheck
from stream.monitor.statistics import RunStatistics
from stream.protocol.buffers import SharedFrameReader, SharedFrameWriter
from stream.protocol.codec import frame_packet
from stream.protocol.messages import (
    AnswerDelta,
    FramePacketMessage,
    SetQuery,
    TokenPacketMessage,
    TurnGrant,
    TurnRequest,
)
from stream.recording.journal import journal_for
from tests.stream.answer.test_client import clock, opened
from tests.stream.display.test_layout import FIGURES
from tests.stream.runtime.test_pipeline import configured, run, without_timing
from tests.support.answer_client import ClientFixture, Opener, answered, tokens, whole_frame
from tests.support.clock import FakeClock
from tests.support.events import answer
from tests.support.video import make_video, moving_square

__all__ = ["clock", "opened"]


def asked_with_shadow(server: ClientFixture) -> FramePacket:
    """An answer is asked for, and given, that is to be checked."""
    shadow = whole_frame()
    server.grant()
    server.send(tokens(), "every", shadow=shadow)
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
    (found,) = server.hear(answered(0))
    assert found == ShadowCheck(
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


def test_a_check_of_another_question_is_dropped(opened: Opener) -> None:
    server = opened()
    asked_with_shadow(server)
    server.hear(answered(0))
    server.expect(TurnRequest)
    server.client.set_query("who?")
    server.expect(SetQuery)
    server.hear(TurnGrant(turn=2))
    server.expect(FramePacketMessage)
    assert server.hear(answered(0, query="who?")) == []
    assert not server.client.busy


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
    (found,) = server.hear(answered(0))
    assert isinstance(found, ShadowCheck)


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
                answer=AnswerConfig(every_s=0.3, encode=encode, shadow_every=every),
            )
        )
        for every in (None, 2)
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
    rest = [event for event in checked.events if not isinstance(event, ShadowCheck)]
    assert without_timing(rest) == without_timing(plain.events)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("answer.encode", "full", "answer.encode = full gives already"),
        ("answer.memory.frames", 2, "leave answer.memory.frames at 1"),
        ("watch", ["is it?"], "leave watches out"),
    ],
)
def test_options_that_do_not_go_with_checks_are_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^x: answer.shadow_every compares .*{message}"):
        build_config([ConfigLayer("x", {"answer.shadow_every": 5}), ConfigLayer("y", {key: value})])
    with pytest.raises(
        ConfigError, match=r"answer\.shadow_every should be greater than or equal to 1, or be none, got 0"
    ):
        build_config([ConfigLayer("x", {"answer.shadow_every": 0})])


def test_a_checked_run_cannot_be_continued(tmp_path: Path) -> None:
    config = Config.model_validate(
        {
            "source": "scene:demo",
            "answer": AnswerConfig(shadow_every=5),
            "output": {"paths": (str(tmp_path / "a.vtt"),)},
        }
    )
    with pytest.raises(ResumeError, match=r"--resume is incompatible with answer\.shadow_every"):
        journal_for(config, resume=True)


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
    shown = dataclasses.replace(FIGURES, checks=2, checks_same=1, checks_words=0.75)
    assert dict(figure_rows(shown))["shadow"] == ["1 of 2 checks the same", "75 % of words"]
    assert " · shadow 1 of 2 the same · " in figures_text(shown, "0:01.0")
