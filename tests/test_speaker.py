"""Opening a model by name, and a Qwen model as a speaker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arr_coc.errors import ContextLengthError, ModelNotFound
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import FrameStamp, TileGrid, TokenPacket
from stream.config import AnswerConfig, Config
from stream.errors import ConfigError
from stream.speaker import QWEN, QwenSpeaker, model_name, open_speaker
from tests.tiny_qwen import tiny_folder, tiny_qwen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


def packet() -> TokenPacket:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    regions = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]], np.int32)
    return TokenPacket(FrameStamp(3, 4, 5, 6), TileGrid.of(64, 64), regions, np.ones(4, np.float32), pixels)


def test_a_qwen_model_speaks_as_its_session_does(folder: Path) -> None:
    answer = AnswerConfig(model=str(folder), max_tokens=5, query="what?")
    speaker = open_speaker(QWEN, Config(answer=answer))
    assert (speaker.model_id, speaker.knows_levels, speaker.known_world) == ("tiny", False, None)
    embedding = speaker.embed("what?")
    assert embedding.tokens.dtype == np.float32
    text = "".join(speaker.answer(packet(), "what?", lambda: False))
    spoken = speaker.last
    assert (spoken.tokens_used, spoken.text_tokens) == (4, 5)
    assert spoken.feedback is not None
    assert spoken.feedback.stamp == packet().stamp
    assert text == "".join(speaker.answer(packet(), "what?", lambda: False))


def test_a_question_that_does_not_fit_the_model_is_refused_before_the_first_frame() -> None:
    speaker = QwenSpeaker(AnswerSession(tiny_qwen()))
    longest = speaker._session.qwen.max_context_tokens
    with pytest.raises(ContextLengthError):
        speaker.embed("why " * longest)


def test_a_model_has_a_name_for_people(folder: Path) -> None:
    assert model_name(Config(answer=AnswerConfig(model=str(folder)))) == "tiny"
    assert model_name(Config(answer=AnswerConfig(model="Qwen/Qwen3-VL-2B-Instruct"))) == "Qwen/Qwen3-VL-2B-Instruct"


def test_a_folder_that_can_be_seen_to_be_unusable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        model_name(Config(answer=AnswerConfig(model=str(tmp_path))))


def test_a_speaker_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="no speaker 'nowhere:nobody'"):
        open_speaker("nowhere:nobody", Config())
