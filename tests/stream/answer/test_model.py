"""Opening a model by name, and a Qwen model as an answer model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ContextLengthError, ModelError, ModelNotFound, OptionError
from arr_coc.qwen.options import AnswerOptions
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import FrameStamp, TileGrid, TokenPacket
from stream.answer.loading import model_name
from stream.answer.model import CONFIGURED, load_answer_model
from stream.answer.qwen import QwenAnswerModel
from stream.answer.server import answer_reply
from stream.config import AnswerConfig, Config
from stream.errors import ConfigError
from tests.arr_coc.qwen.test_thinking import thinking_qwen
from tests.support.answer_models import OneClient
from tests.support.models import tiny_folder, tiny_qwen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


def packet() -> TokenPacket:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    regions = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]], np.int32)
    return TokenPacket(FrameStamp(3, 4, 5, 6), TileGrid.of(64, 64), regions, np.ones(4, np.float32), pixels)


def test_a_qwen_model_answers_as_its_session_does(folder: Path) -> None:
    answer = AnswerConfig(model=str(folder), max_tokens=5, query="what?")
    model = load_answer_model(CONFIGURED, Config(answer=answer))
    assert (model.model_id, model.knows_levels, model.known_world) == ("tiny", False, None)
    embedding = model.embed_query("what?")
    assert embedding.tokens.dtype == np.float32
    client = OneClient(model)
    text = client.answer(packet())
    stats = client.stats
    assert stats is not None
    assert (stats.work.tokens_used, stats.work.text_tokens) == (4, 5)
    assert stats.feedback is not None
    assert stats.feedback.stamp == packet().stamp
    assert text == client.answer(packet())


def test_a_model_without_feedback_sends_none(folder: Path) -> None:
    model = load_answer_model(CONFIGURED, Config(answer=AnswerConfig(model=str(folder), max_tokens=2, feedback=False)))
    client = OneClient(model)
    client.answer(packet())
    assert client.stats is not None
    assert client.stats.feedback is None
    message, arrays = answer_reply(0, "", client.stats)
    assert (message.feedback_stamp, message.arrays, arrays) == (None, (), [])


def test_a_qwen_model_scores_as_its_session_does() -> None:
    qwen = tiny_qwen()
    qwen.tokenizer.add_tokens(["yes", "no"])
    model, session = QwenAnswerModel(AnswerSession(qwen)), AnswerSession(qwen)
    model.check_watch("is it?")
    score = session.score_yes_no(packet(), "is it?")
    client = OneClient(model)
    assert client.score(packet(), "is it?") == (score.yes, score.mass)
    assert client.stats is not None
    assert (client.stats.work.tokens_used, client.stats.work.text_tokens) == (4, 0)


def test_a_watch_must_fit_the_model() -> None:
    model = QwenAnswerModel(AnswerSession(tiny_qwen()))
    with pytest.raises(ModelError, match="no single token for yes"):
        model.check_watch("is it?")
    with pytest.raises(ContextLengthError):
        model.check_watch("why " * model._session.qwen.max_context_tokens)


def test_a_question_that_does_not_fit_the_model_is_refused_before_the_first_frame() -> None:
    model = QwenAnswerModel(AnswerSession(tiny_qwen()))
    longest = model._session.qwen.max_context_tokens
    with pytest.raises(ContextLengthError):
        model.embed_query("why " * longest)


def at(second: int, epoch: int = 1) -> TokenPacket:
    return replace(packet(), stamp=FrameStamp(second, second * 10**9, 0, epoch))


def test_a_model_has_a_display_name(folder: Path) -> None:
    assert model_name(Config(answer=AnswerConfig(model=str(folder)))) == "tiny"
    assert model_name(Config(answer=AnswerConfig(model="Qwen/Qwen3-VL-2B-Instruct"))) == "Qwen/Qwen3-VL-2B-Instruct"


def test_an_empty_model_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="is empty"):
        model_name(Config(answer=AnswerConfig(model=str(tmp_path))))


def test_a_missing_answer_model_is_named() -> None:
    with pytest.raises(ConfigError, match="cannot load the answer model 'nowhere:no_model'"):
        load_answer_model("nowhere:no_model", Config())


def test_thoughts_in_the_answer_refuse_schemas() -> None:
    session = AnswerSession(thinking_qwen(), AnswerOptions(thinking="show"))
    with pytest.raises(OptionError, match=r"answer.thinking = show makes thoughts part of the answer"):
        QwenAnswerModel(session).check_schema(AnswerSchema.of_choices(["a", "b"]))
