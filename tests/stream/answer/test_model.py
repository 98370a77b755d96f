"""Opening a model by name, and a Qwen model as an answer model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.budget import TokenLimits
from arr_coc.errors import ContextLengthError, ModelError, ModelNotFound, OptionError
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import FrameStamp, TileGrid, TokenPacket
from stream.answer.model import CONFIGURED, load_answer_model, model_name
from stream.answer.qwen import QwenAnswerModel
from stream.answer.server import answer_reply
from stream.config import AllocateConfig, AnswerConfig, Config, WindowConfig
from stream.errors import ConfigError
from tests.support.answer_models import OneClient
from tests.support.models import tiny_folder, tiny_qwen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


def packet() -> TokenPacket:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    regions = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]], np.int32)
    return TokenPacket(FrameStamp(3, 4, 5, 6), TileGrid.of(64, 64), regions, np.ones(4, np.float32), pixels)


def test_a_qwen_model_speaks_as_its_session_does(folder: Path) -> None:
    answer = AnswerConfig(model=str(folder), max_tokens=5, query="what?")
    model = load_answer_model(CONFIGURED, Config(answer=answer))
    assert (model.model_id, model.knows_levels, model.known_world) == ("tiny", False, None)
    embedding = model.embed_query("what?")
    assert embedding.tokens.dtype == np.float32
    client = OneClient(model)
    text = client.answer(packet())
    spoken = client.stats
    assert spoken is not None
    assert (spoken.tokens_used, spoken.text_tokens) == (4, 5)
    assert spoken.feedback is not None
    assert spoken.feedback.stamp == packet().stamp
    assert text == client.answer(packet())


def test_a_model_that_is_to_teach_nothing_sends_nothing(folder: Path) -> None:
    model = load_answer_model(CONFIGURED, Config(answer=AnswerConfig(model=str(folder), max_tokens=2, feedback=False)))
    client = OneClient(model)
    client.answer(packet())
    assert client.stats is not None
    assert client.stats.feedback is None
    message, arrays = answer_reply(0, "what?", "", client.stats)
    assert (message.feedback_stamp, message.arrays, arrays) == (None, (), [])


def test_a_qwen_model_looks_as_its_session_does() -> None:
    qwen = tiny_qwen()
    qwen.tokenizer.add_tokens(["yes", "no"])
    model, session = QwenAnswerModel(AnswerSession(qwen)), AnswerSession(qwen)
    model.check_standing_query("is it?")
    found = session.score_yes_no(packet(), "is it?")
    client = OneClient(model)
    assert client.score(packet(), "is it?") == (found.yes, found.mass)
    assert client.stats is not None
    assert (client.stats.tokens_used, client.stats.text_tokens) == (4, 0)


def test_a_standing_question_must_fit_the_model() -> None:
    model = QwenAnswerModel(AnswerSession(tiny_qwen()))
    with pytest.raises(ModelError, match="no single token for yes"):
        model.check_standing_query("is it?")
    with pytest.raises(ContextLengthError):
        model.check_standing_query("why " * model._session.qwen.max_context_tokens)


def test_a_question_that_does_not_fit_the_model_is_refused_before_the_first_frame() -> None:
    model = QwenAnswerModel(AnswerSession(tiny_qwen()))
    longest = model._session.qwen.max_context_tokens
    with pytest.raises(ContextLengthError):
        model.embed_query("why " * longest)


def at(second: int, epoch: int = 1) -> TokenPacket:
    return replace(packet(), stamp=FrameStamp(second, second * 10**9, 0, epoch))


class Watching(OneClient):
    """Client of a Qwen model."""

    model: QwenAnswerModel


def watching(folder: Path, **window: Any) -> Watching:
    """A client whose answers cover several frames."""
    answer = AnswerConfig(model=str(folder), max_tokens=3, window=WindowConfig(**window))
    model = load_answer_model(CONFIGURED, Config(answer=answer))
    assert isinstance(model, QwenAnswerModel)
    return Watching(model)


def frames_of(client: Watching, shown: TokenPacket) -> list[int]:
    """Frames that an answer about a packet covers."""
    client.answer(shown)
    return [stamp.frame_index for stamp in client.model._session.last.shown]


def test_an_answer_speaks_of_the_last_frames_that_its_client_sent(folder: Path) -> None:
    client = watching(folder, frames=2)
    assert [frames_of(client, at(second)) for second in range(3)] == [[0], [0, 1], [1, 2]]
    assert client.stats is not None
    assert (client.stats.frames, client.stats.oldest_frame_ns, client.stats.tokens_used) == (
        2,
        10**9,
        8,
    )
    assert client.stats.kept_bytes > 0
    client.client = b"other"
    assert frames_of(client, at(5, epoch=2)) == [5]
    client.client = b"one"
    assert frames_of(client, at(3)) == [2, 3]


def test_who_has_left_is_forgotten(folder: Path) -> None:
    client = watching(folder, frames=2)
    frames_of(client, at(0))
    client.model.drop_client(b"one")
    client.model.drop_client(b"nobody")
    assert frames_of(client, at(1)) == [1]
    assert list(client.model._windows) == [b"one"]


@pytest.mark.parametrize(("on_cut", "frames"), [("empty", [1]), ("keep", [0, 1])])
def test_a_cut_forgets_unless_it_is_set_to_keep(folder: Path, on_cut: str, frames: list[int]) -> None:
    client = watching(folder, frames=3, on_cut=on_cut)
    frames_of(client, at(0))
    assert frames_of(client, at(1, epoch=2)) == frames


def test_a_question_picks_from_more_frames_than_are_shown(folder: Path) -> None:
    client = watching(folder, frames=2, kept=4)
    for second, relevance in enumerate((0.1, 0.9, 0.2, 0.3)):
        shown = replace(at(second), relevance=np.full(4, relevance, np.float32))
        last = frames_of(client, shown)
    assert last == [1, 3]


def test_one_frame_is_shown_as_the_stock_model_shows_it(folder: Path) -> None:
    client = watching(folder)
    assert [frames_of(client, at(second)) for second in range(2)] == [[0], [1]]
    assert client.stats is not None
    assert (client.stats.frames, client.model._windows) == (1, {})


def test_a_question_too_long_beside_the_window_is_refused(folder: Path) -> None:
    """Alone it would fit."""
    client = watching(folder, frames=3)
    long = "a" * 4000
    while client.model._session.prompts.other_tokens(long) < 4096 - 30:
        long += "a"
    client.model.select_client(b"one")
    client.model.embed_query(long)
    frames_of(client, at(0))
    with pytest.raises(ContextLengthError, match=r"a window of 3 frames .* show at most 2, or"):
        client.model.embed_query(long)


def test_a_window_out_of_range_is_refused_before_the_model_is_loaded() -> None:
    answer = AnswerConfig(model="/nowhere", window=WindowConfig(frames=4, kept=2))
    with pytest.raises(OptionError, match="keep as many or more, got 2"):
        load_answer_model(CONFIGURED, Config(answer=answer))


def test_the_window_is_checked_for_the_largest_frames_that_the_budget_gives(folder: Path) -> None:
    answer = AnswerConfig(model=str(folder), window=WindowConfig(frames=4))
    for budget, most in ((50, 50), ("adaptive", "adaptive"), ("auto", "auto"), ("27%", "27%")):
        allocate = AllocateConfig.model_validate({"budget": budget})
        model = load_answer_model(CONFIGURED, Config(answer=answer, allocate=allocate))
        assert isinstance(model, QwenAnswerModel)
        assert model._options is not None
        assert model._options.budget == most
    limited = AllocateConfig(min_tokens=3, max_tokens=7)
    for target_ms, most in ((None, "auto"), (500.0, 7)):
        own = answer.model_copy(update={"target_ms": target_ms})
        model = load_answer_model(CONFIGURED, Config(answer=own, allocate=limited))
        assert isinstance(model, QwenAnswerModel)
        assert model._options is not None
        assert (model._options.budget, model._options.limits) == (most, TokenLimits(3, 7))


def test_a_model_has_a_name_for_people(folder: Path) -> None:
    assert model_name(Config(answer=AnswerConfig(model=str(folder)))) == "tiny"
    assert model_name(Config(answer=AnswerConfig(model="Qwen/Qwen3-VL-2B-Instruct"))) == "Qwen/Qwen3-VL-2B-Instruct"


def test_a_folder_that_can_be_seen_to_be_unusable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="is empty"):
        model_name(Config(answer=AnswerConfig(model=str(tmp_path))))


def test_an_answer_model_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="cannot load the answer model 'nowhere:nobody'"):
        load_answer_model("nowhere:nobody", Config())
