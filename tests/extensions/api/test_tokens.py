"""Tokens for vLLM with the plugin: requests as its reader reads them, and servers that do not take tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from arr_coc.errors import ModelError
from arr_coc.hub import bundled_model_path
from arr_coc.layer_weights import serialize_realiser
from arr_coc.qwen.grounding import THOUSANDTHS
from arr_coc.qwen.loading import load_qwen
from arr_coc.types import FramePacket, FrameStamp, GroupPlace, TileGrid, TokenPacket, time_text
from stream.config import AnswerConfig, Config, MemoryConfig
from stream.errors import AnswerLost, ConfigError, ConnectionRefused
from stream.extensions.api.model import ApiAnswerModel, load_api_model
from stream.extensions.api.section import ApiSection
from stream.extensions.api.tokens import ApiTokens, shown_frames, tokens_of
from tests.support import api_server as fake
from tests.support.answer_models import OneClient
from tests.support.api_server import FakeApiServer, api_server
from tests.support.vllm_plugin import CACHED_TOKENS, TokenServer, speak_with_cache

MS = 1_000_000
GRID = TileGrid.of(120, 190)
REGIONS = [(2, 0, 0), (2, 0, 1), (0, 0, 0), (1, 1, 2), (0, 3, 5)]


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with api_server() as fake_server:
        yield fake_server


def config(server: FakeApiServer, **answer: Any) -> Config:
    api = ApiSection(url=server.url, picture="tokens")
    return Config(answer=AnswerConfig(**{"encode": "sparse", "model": fake.MODEL, **answer}), api=api)


def loaded(server: FakeApiServer, **answer: Any) -> OneClient:
    return OneClient(load_api_model(config(server, **answer)))


def packet(index: int = 0, place: GroupPlace | None = None, tokens: int = len(REGIONS)) -> TokenPacket:
    """A packet whose pixels differ from frame to frame, with an overview of two regions."""
    pixels = np.random.default_rng(index).integers(0, 256, (tokens, 3, 32, 32), np.uint8)
    stamp = FrameStamp(index, index * 500 * MS, 0)
    regions = np.array(REGIONS[:tokens], np.int32).reshape(-1, 3)
    return TokenPacket(stamp, GRID, regions, np.ones(tokens, np.float32), pixels, min(tokens, 2), place)


def test_one_answer_is_one_request_with_the_tokens_as_the_plugin_reads_them(server: FakeApiServer) -> None:
    plugin = TokenServer(server)
    model = loaded(server)
    assert plugin.probes == 1
    assert model.answer(packet(), "what?") == "a red circle"
    (body,), ((picture,),) = plugin.bodies, plugin.requests
    assert [part["type"] for part in body["messages"][0]["content"]] == ["image_url", "text"]
    assert server.texts() == ["what?"]
    np.testing.assert_array_equal(picture.tiles, packet().pixels)
    np.testing.assert_array_equal(picture.regions, REGIONS)
    assert (picture.rows, picture.cols, picture.overview) == (4, 6, 2)
    assert model.stats is not None
    assert (model.stats.work.tokens_used, model.stats.work.frames, model.stats.feedback) == (5, 1, None)
    assert model.stats.extent == (THOUSANDTHS * 190 / 192, THOUSANDTHS * 120 / 128)
    assert (model.stats.work.prefilled_tokens, model.stats.work.memory_tokens) == (0, 0)


def test_yes_and_no_are_read_from_log_probabilities(server: FakeApiServer) -> None:
    plugin = TokenServer(server)
    yes, _ = loaded(server).score(packet(), "is it red?")
    assert yes == pytest.approx(0.948, abs=0.001)
    assert plugin.bodies[0]["logprobs"] is True
    assert len(plugin.requests[0]) == 1


def test_a_whole_frame_is_sent_as_all_of_its_tiles(server: FakeApiServer) -> None:
    plugin, image = TokenServer(server), np.random.default_rng(0).integers(0, 256, (128, 192, 3), np.uint8)
    full_frame = FramePacket(FrameStamp(0, 0, 0), GRID, np.zeros((2, 3), np.int32), np.ones((4, 6), np.float32), image)
    model = loaded(server)
    model.answer(full_frame, "what?")
    ((picture,),) = plugin.requests
    assert len(picture.tiles) == 24
    for tile, (shape, row, col) in zip(picture.tiles, picture.regions, strict=True):
        assert shape == 0
        np.testing.assert_array_equal(tile.transpose(1, 2, 0), image[row * 32 :, col * 32 :][:32, :32])


@pytest.mark.parametrize("owner", ["vllm", "tests"])
def test_a_server_without_the_plugin_is_refused_in_one_line(server: FakeApiServer, owner: str) -> None:
    server.owner = owner
    with pytest.raises(
        ConfigError, match=r"is no vLLM with the plugin arr-coc-vllm, .* or give --picture scaled"
    ) as error:
        loaded(server)
    assert "\n" not in str(error.value)


def test_a_plugin_of_another_version_is_refused_with_both(server: FakeApiServer) -> None:
    TokenServer(server, version=2)
    with pytest.raises(ConfigError, match="reads packets of version 2, and this program sends version 1"):
        loaded(server)


def test_a_wrong_name_of_the_model_is_no_missing_plugin(server: FakeApiServer) -> None:
    server.behaviour = fake.refuse(404, "The model `other` does not exist.")
    with pytest.raises(ModelError, match="lacks the model"):
        loaded(server, model="other")


def test_a_server_that_fails_at_the_start_is_reported(server: FakeApiServer) -> None:
    server.behaviour = fake.refuse(503, "loading")
    with pytest.raises(ConnectionRefused, match="503 loading; see what the server logs"):
        loaded(server)


def test_after_a_loss_the_server_is_asked_for_its_plugin_again(server: FakeApiServer) -> None:
    plugin = TokenServer(server)
    model = loaded(server)
    server.behaviour = fake.refuse(503, "restarting")
    with pytest.raises(AnswerLost):
        model.answer(packet(), "what?")
    server.behaviour = plugin.behave
    assert model.answer(packet(1), "what?") == "a red circle"
    assert (plugin.probes, len(plugin.requests)) == (2, 1)
    model.answer(packet(2), "what?")
    assert (plugin.probes, len(plugin.requests)) == (2, 2)


def test_a_server_that_came_back_without_the_plugin_answers_nothing(server: FakeApiServer) -> None:
    TokenServer(server)
    model = loaded(server)
    server.behaviour = fake.break_off
    with pytest.raises(AnswerLost):
        model.answer(packet(), "what?")
    server.behaviour = fake.speak
    with pytest.raises(ConfigError, match="is no vLLM with the plugin"):
        model.answer(packet(1), "what?")


def test_cached_tokens_are_those_that_the_server_reports(server: FakeApiServer) -> None:
    TokenServer(server, speak_with_cache)
    model = loaded(server)
    model.answer(packet(), "what?")
    assert model.stats is not None
    assert model.stats.work.prefilled_tokens == 90 - CACHED_TOKENS


def group(count: int, frames: int) -> list[TokenPacket]:
    return [packet(index, GroupPlace(1, index, frames)) for index in range(count)]


def shown(packets: Sequence[TokenPacket]) -> list[int]:
    return [packet.stamp.frame_index for packet in shown_frames(packets)]


@pytest.mark.parametrize("frames", [2, 3, 4, 5, 8])
def test_frames_of_a_group_are_appended_until_half_of_them_leave(frames: int) -> None:
    packets, before, computed = group(40, frames), list[int](), list[int]()
    for count in range(1, len(packets) + 1):
        now = shown(packets[:count])
        assert now == list(range(now[0], count))
        assert min(count, frames // 2 + 1) <= len(now) <= frames
        computed.append(1 if now[:-1] == before else len(now))
        before = now
    assert np.mean(computed) <= (2 if frames > 3 else frames)


def test_a_frame_that_shows_nothing_new_is_not_sent(server: FakeApiServer) -> None:
    packets = [*group(2, 4), packet(7, GroupPlace(1, 2, 4), tokens=0)]
    assert shown(packets) == [0, 1]


def test_a_group_of_one_frame_is_refused() -> None:
    with pytest.raises(ModelError, match="no room for two frames of 5 tokens; raise it"):
        shown_frames([packet(0, GroupPlace(1, 0, 1))])


def remembered(model: ApiAnswerModel, asking: OneClient, packet: TokenPacket) -> None:
    assert model.memory is not None
    model.memory.add(asking.client, packet)
    asking.answer(packet, "what?")


def test_frames_are_sent_once_in_the_same_order_each_with_its_time(server: FakeApiServer) -> None:
    plugin = TokenServer(server, speak_with_cache)
    asking = loaded(server, memory=MemoryConfig(frames=4))
    for frame in group(4, 4):
        remembered(asking.model, asking, frame)
    for number, (pictures, body) in enumerate(zip(plugin.requests, plugin.bodies, strict=True)):
        content = body["messages"][0]["content"]
        assert len(pictures) == number + 1
        for index, packet_read in enumerate(pictures):
            np.testing.assert_array_equal(packet_read.tiles, packet(index).pixels)
        has_picture = [part["image_url"] is not None for part in content if "image_url" in part]
        assert has_picture == [False] * number + [True]
        if number:
            assert [part["text"] for part in content if "text" in part][:-1] == [
                time_text(index * 500 * MS) for index in range(number + 1)
            ]
    assert asking.stats is not None
    assert (asking.stats.work.frames, asking.stats.work.memory_tokens, asking.stats.work.appended_tokens) == (4, 20, 5)
    asking.model.drop_client(asking.client)
    assert asking.model.memory.next_place(asking.client) is None


def test_a_frame_of_a_group_is_packed_once(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    TokenServer(server)
    packed: list[int] = []

    def counted(packet: TokenPacket | FramePacket) -> ApiTokens:
        packed.append(packet.stamp.frame_index)
        return tokens_of(packet)

    monkeypatch.setattr("stream.extensions.api.model.tokens_of", counted)
    asking = loaded(server, memory=MemoryConfig(frames=4))
    for frame in group(8, 4):
        remembered(asking.model, asking, frame)
    assert packed == list(range(8))
    remembered(asking.model, asking, packet(9, GroupPlace(1, 7, 4)))  # in the place of the last one
    assert packed == [*range(8), 9]


def test_the_allocator_of_a_model_whose_files_are_here_hears_the_question(server: FakeApiServer) -> None:
    TokenServer(server)
    folder = str(bundled_model_path())
    model, qwen = load_api_model(config(server, model=folder)), load_qwen(None, device="cpu", dtype="float32")
    assert model.allocator == serialize_realiser(qwen.realiser)
    assert (model.knows_levels, model.knows_wide, model.known_world) == (
        qwen.knows_levels,
        qwen.knows_wide,
        qwen.known_world,
    )
    embedding, reference = model.embed_query("which word is red?"), qwen.embed_query("which word is red?")
    np.testing.assert_array_equal(embedding.tokens, reference.tokens)
    assert embedding.model_id == model.model_id
    assert model.check_watch("is there a zebra?") == qwen.unseen_words("is there a zebra?") == ("zebra",)


def test_an_allocator_needs_the_files_of_its_model(server: FakeApiServer) -> None:
    TokenServer(server)
    with pytest.raises(ModelError, match="is not on this machine; give -m the folder"):
        loaded(server, allocator="somewhere")


def test_a_name_that_a_server_gives_opens_no_folder(server: FakeApiServer) -> None:
    TokenServer(server)
    server.models = [str(bundled_model_path())]
    model = load_api_model(config(server, model=None))
    assert model.allocator == b""
    np.testing.assert_array_equal(model.embed_query("what?").tokens, np.zeros((1, 1), np.float32))
