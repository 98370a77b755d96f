"""Text models: a Qwen model on this machine asked without pictures, and the choice between it and a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from arr_coc.errors import ContextLengthError, ModelNotFound
from stream.answer.qwen_text import TEMPLATE_TOKENS, QwenTextModel
from stream.answer.text import load_text_model
from stream.answer.text_model import STATEMENT_TOKENS
from stream.config import AnswerConfig, Config
from stream.errors import ConfigError
from stream.extension import ModelType
from stream.extensions.api.section import ApiSection
from tests.support.api_server import api_server
from tests.support.models import tiny_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> QwenTextModel:
    folder = tiny_folder(tmp_path_factory.mktemp("model"))
    text_model = load_text_model(Config(answer=AnswerConfig(model=str(folder), device="cpu")))
    assert isinstance(text_model, QwenTextModel)
    return text_model


def test_a_prompt_of_text_is_answered(model: QwenTextModel) -> None:
    answer = model.complete("A red circle moves. Say it again.")
    assert answer == model.complete("A red circle moves. Say it again."), "the likeliest tokens"
    assert model.count_tokens(answer) <= STATEMENT_TOKENS
    assert model.known_world is None


def test_a_prompt_has_the_room_that_an_answer_leaves(model: QwenTextModel) -> None:
    assert model.prompt_tokens == model.model.qwen.max_context_tokens - STATEMENT_TOKENS - TEMPLATE_TOKENS
    words = "a " * 2 * model.prompt_tokens
    while model.count_tokens(words) > model.prompt_tokens:
        words, longer = words[: len(words) * 9 // 10], words
    model.complete(words)
    with pytest.raises(ContextLengthError):
        model.complete(longer + words)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        load_text_model(Config(answer=AnswerConfig(model=str(tmp_path / "none"))))


def test_a_model_about_pictures_only_is_refused() -> None:
    model_type = ModelType(key="eyes.url", option="--eyes", name="eyes:name", load="eyes:load")
    with pytest.raises(ConfigError, match="a model of --eyes answers about pictures only; leave --eyes out"):
        model_type.load_text_model(Config())


def test_a_server_is_asked_if_one_is_named() -> None:
    with api_server() as server:
        text_model = load_text_model(Config(answer=AnswerConfig(encode="picture"), api=ApiSection(url=server.url)))
        assert text_model.complete("What?") == "a red circle"
        assert text_model.count_tokens("ü" * 3) == 2
    assert (text_model.name, text_model.known_world, text_model.prompt_tokens) == ("tiny", None, 4096)
