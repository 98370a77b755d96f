"""Answer: greeting, packets, pieces of text, feedback, and being told to stop."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from arr_coc.types import FramePacket, FrameStamp, TileGrid, TokenPacket
from stream.config import AnswerConfig, Config
from stream.errors import ConfigError, StageDied, TransportError
from stream.messages import Answered, Cancel, Credit, End, Failed, Hello, Joined, Stopped, Text
from stream.packets import embedding_of, feedback_of, frame_message, token_message
from stream.snapshot import SnapshotReader, SnapshotWriter
from stream.stages.answer import AnswerStage
from stream.stages.base import ALLOCATE_ANSWER
from tests.stage_runner import LIMIT_MS, StageRunner, expect, expect_whole, stage_runner

STAMP = FrameStamp(7, 8, 9, 10)
GRID = TileGrid.of(60, 90)


@pytest.fixture
def runner() -> Iterator[StageRunner]:
    with stage_runner() as made:
        yield made


class Fixture:
    def __init__(
        self, runner: StageRunner, speaker: str = "FakeSpeaker", snapshot: SnapshotReader | None = None
    ) -> None:
        self.link = runner.link(ALLOCATE_ANSWER, bind=True)
        config = Config(answer=AnswerConfig(query="what is it"))
        name = speaker if ":" in speaker else f"tests.fake_speaker:{speaker}"
        runner.start(AnswerStage(config, name, ALLOCATE_ANSWER, runner.transport, runner.control, snapshot))
        expect(self.link, Joined)

    def greet(self) -> None:
        expect(self.link, Hello)
        expect(self.link, Credit)

    def ask(self, number: int = 0, packet: TokenPacket | None = None) -> None:
        self.link.send(*token_message(number, packet or tokens()))

    def hear_answer(self) -> None:
        for kind in (Text, Text, Answered, Credit):
            expect(self.link, kind)


def tokens() -> TokenPacket:
    regions = np.array([[0, 0, 0], [1, 0, 1]], np.int32)
    return TokenPacket(STAMP, GRID, regions, np.ones(2, np.float32), np.full((2, 3, 32, 32), 2, np.uint8))


def test_it_greets_with_its_model_and_the_embedded_question(runner: StageRunner) -> None:
    fixture = Fixture(runner, "DrawnWorldSpeaker")
    hello, received = expect_whole(fixture.link, Hello)
    assert (hello.model_id, hello.knows_levels, hello.known_world) == ("fake", True, "drawn scenes")
    embedding = embedding_of(hello, received.parts)
    assert embedding.text == "what is it"
    assert embedding.tokens.shape == (3, 8)
    assert expect(fixture.link, Credit).count == 1


def test_an_answer_comes_in_pieces_then_whole_with_its_feedback_then_a_credit(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.greet()
    fixture.ask(3)
    assert expect(fixture.link, Text) == Text(answer=3, text="frame 7")
    assert expect(fixture.link, Text) == Text(answer=3, text=f" sum {2 * 2 * 3 * 32 * 32}")
    answered, received = expect_whole(fixture.link, Answered)
    assert (answered.answer, answered.text) == (3, f"frame 7 sum {2 * 2 * 3 * 32 * 32}")
    assert (answered.tokens_used, answered.text_tokens) == (2, 4)
    feedback = feedback_of(answered, received.parts)
    assert feedback is not None
    assert feedback.stamp == STAMP
    np.testing.assert_array_equal(feedback.attention, np.array([1, 0], np.float32))
    expect(fixture.link, Credit)


def test_the_end_comes_after_the_answers_that_were_asked_for(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.greet()
    fixture.ask()
    fixture.link.send(End(reason="finished"))
    fixture.hear_answer()
    expect(fixture.link, Stopped)
    assert runner.join() is None


def test_cancel_stops_it_between_two_tokens(runner: StageRunner) -> None:
    fixture = Fixture(runner, "PatientSpeaker")
    fixture.greet()
    fixture.ask(0)
    for kind in (Text, Text, Text, Answered, Credit):
        expect(fixture.link, kind)
    fixture.ask(1)
    expect(fixture.link, Text)
    fixture.link.send(Cancel())
    while (received := fixture.link.receive(200)) is not None:
        assert isinstance(received.message, Text)
    assert runner.join() is None


def test_cancel_stops_it_while_it_waits(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.greet()
    fixture.link.send(Cancel())
    assert runner.join() is None


def test_a_whole_frame_in_the_message_reaches_the_speaker(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.greet()
    fixture.link.send(*frame_message(0, whole_frame(), in_snapshot=False))
    assert expect(fixture.link, Text).text == "frame 7"
    assert expect(fixture.link, Text).text == f" sum {whole_frame().image.sum()}"


def test_a_whole_frame_in_the_snapshot_reaches_the_speaker(runner: StageRunner) -> None:
    writer = SnapshotWriter()
    fixture = Fixture(runner, snapshot=SnapshotReader(writer.descriptor))
    fixture.greet()
    writer.write(whole_frame().image)
    fixture.link.send(*frame_message(0, whole_frame(), in_snapshot=True))
    expect(fixture.link, Text)
    assert expect(fixture.link, Text).text == f" sum {whole_frame().image.sum()}"
    writer.close()


def whole_frame() -> FramePacket:
    image = np.full((GRID.padded_height_px, GRID.padded_width_px, 3), 3, np.uint8)
    return FramePacket(STAMP, GRID, tokens().regions, np.ones(GRID.shape, np.float32), image)


def test_what_the_speaker_raises_is_told_and_reported(runner: StageRunner) -> None:
    fixture = Fixture(runner, "BrokenSpeaker")
    fixture.greet()
    fixture.ask()
    expect(fixture.link, Text)
    failed = expect(fixture.link, Failed)
    assert (failed.error, failed.message) == ("ArithmeticError", "ArithmeticError: the spoon is bent")
    assert "fake_speaker.py" in failed.details
    failure = runner.join()
    assert isinstance(failure, StageDied)
    assert failure.stage == "answer"


def test_a_message_of_the_wrong_kind_is_refused(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.greet()
    fixture.link.send(Credit())
    assert expect(fixture.link, Failed).message == "the answer stage takes packets, got Credit"
    failure = runner.join()
    assert isinstance(failure, StageDied)
    assert isinstance(failure.__cause__, TransportError)


def test_a_packet_that_nobody_asked_for_is_refused(runner: StageRunner) -> None:
    fixture = Fixture(runner, "SilentSpeaker")
    fixture.greet()
    fixture.ask(0)
    fixture.ask(1)
    assert expect(fixture.link, Failed).message == "Tokens came without a credit"
    assert isinstance(runner.join(), StageDied)


@pytest.mark.parametrize("name", ["tests.nowhere:FakeSpeaker", "tests.fake_speaker:Nobody"])
def test_a_speaker_that_does_not_exist_is_named(runner: StageRunner, name: str) -> None:
    fixture = Fixture(runner, name)
    assert name in expect(fixture.link, Failed).message
    assert isinstance(runner.join(), ConfigError)


def test_the_run_being_cancelled_stops_it_too(runner: StageRunner) -> None:
    fixture = Fixture(runner, "SilentSpeaker")
    fixture.greet()
    fixture.ask()
    runner.control.cancel()
    assert runner.join() is None
    assert fixture.link.receive(0 * LIMIT_MS) is None
