"""Allocator weights that come with a model: used where they are for it, and left out where they are not."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from arr_coc.errors import ModelError
from arr_coc.layer import ARRCOCConfig, ARRCOCLayer
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.loading import load_qwen
from arr_coc.relevance import RelevanceRealiser
from arr_coc.texture import TextureArray
from arr_coc.types import QueryEmbedding
from arr_coc.weights import fingerprint, pack_realiser, unpack_realiser
from stream.answer.model import QWEN, load_answer_model
from stream.config import AnswerConfig, Config
from stream.identity import identity_of
from stream.messages import ServerHello, decode, encode
from stream.runtime.wiring import allocator_for
from stream.sources import SourceInfo
from tests.picture_stream import PictureStream, scenery
from tests.tiny_qwen import tiny_folder

WIDTH = 64
QUERY = "Is the cat sleeping?"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("plain") / "tiny")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with an allocator of its own, whose weights are random."""
    folder = tiny_folder(tmp_path_factory.mktemp("trained") / "tiny")
    name = fingerprint(load_qwen(folder).model.get_input_embeddings().weight)
    bring_allocator(folder, name)
    return folder


SOURCE = SourceInfo("a.mp4", 64, 48, 25.0, None, None, live=False, codec="h264", pixel_format="yuv420p")


def bring_allocator(folder: Path, trained_for: str, query_dim: int = WIDTH) -> None:
    torch.manual_seed(3)
    layer = ARRCOCLayer(ARRCOCConfig(query_dim=query_dim, trained_for=trained_for))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    layer.save_pretrained(folder / "arr_coc")


def relevance_of(realiser: RelevanceRealiser) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    texture = TextureArray(torch.rand(1, 13, 5, 6, generator=generator), torch.rand(1, 5, 6, generator=generator))
    return realiser(texture, torch.rand(1, 4, WIDTH, generator=generator)).relevance


def picture() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (160, 224, 3), dtype=np.uint8)


def test_a_name_of_weights_is_that_of_their_values_in_any_dtype() -> None:
    rows = torch.randn(20, 8).bfloat16()
    assert fingerprint(rows) == fingerprint(rows.float())
    assert fingerprint(rows) != fingerprint(rows * 1.01)


def test_the_library_allocates_with_what_came_with_the_model(plain: Path, trained: Path) -> None:
    without, own = ARRCOCQwen.from_pretrained(plain), ARRCOCQwen.from_pretrained(trained)
    assert without.qwen.realiser is None
    assert own.qwen.realiser is not None
    assert own.qwen.realiser.knows("tiny")
    heatmaps = [model.generate(picture(), QUERY, max_tokens=2, budget=9).heatmap for model in (without, own)]
    assert not np.allclose(*heatmaps, atol=0.01)
    other = own.generate(picture(), "a red circle moves left", max_tokens=2, budget=9).heatmap
    assert not np.allclose(heatmaps[1], other, atol=1e-4)
    assert own.fallbacks == 0


def test_weights_for_another_model_are_said_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, plain: Path
) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    bring_allocator(folder, "sha256:0123456789abcdef", query_dim=8)
    with caplog.at_level(logging.WARNING, "arr_coc"):
        qwen = load_qwen(folder)
    assert qwen.realiser is None
    (message,) = caplog.messages
    assert "not for these weights of tiny and are left out" in message
    assert "python -m training.allocator" in message
    heatmaps = [
        ARRCOCQwen(model).generate(picture(), QUERY, max_tokens=2).heatmap for model in (qwen, load_qwen(plain))
    ]
    assert np.array_equal(*heatmaps)


def test_a_model_that_was_trained_on_is_another_model(trained: Path, tmp_path: Path) -> None:
    qwen = load_qwen(trained)
    moved = tiny_folder(tmp_path / "tiny")
    with torch.no_grad():
        qwen.model.get_input_embeddings().weight[7] *= 1.1
    qwen.model.save_pretrained(moved)
    ARRCOCLayer.from_pretrained(trained / "arr_coc").save_pretrained(moved / "arr_coc")
    assert load_qwen(moved).realiser is None


def test_files_that_do_not_fit_are_an_error_of_one_line(trained: Path, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    ARRCOCLayer.from_pretrained(trained / "arr_coc").save_pretrained(folder / "arr_coc")
    weights = folder / "arr_coc" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="train it again") as broken:
        load_qwen(folder)
    assert "\n" not in str(broken.value)
    (folder / "arr_coc" / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is not JSON"):
        load_qwen(folder)


def test_weights_travel_as_bytes() -> None:
    torch.manual_seed(0)
    realiser = RelevanceRealiser(WIDTH, "m")
    again = unpack_realiser(pack_realiser(realiser), "m")
    assert again is not None
    assert again.knows("m")
    assert torch.equal(relevance_of(again), relevance_of(realiser))
    assert unpack_realiser(pack_realiser(None), "m") is None


@pytest.mark.parametrize(
    "data", [b"noise", pack_realiser(RelevanceRealiser()), pack_realiser(RelevanceRealiser(8))[:-9]]
)
def test_bytes_that_are_no_weights_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match="came with m cannot be used; install the same version at both ends"):
        unpack_realiser(data, "m")


def test_the_stream_s_allocator_is_the_one_that_came_with_the_greeting(trained: Path) -> None:
    speaker = load_answer_model(QWEN, Config(answer=AnswerConfig(model=str(trained))))
    hello = ServerHello(model_id=speaker.model_id, knows_levels=False, known_world=None, allocator=speaker.allocator)
    received = decode(encode(hello))
    assert isinstance(received, ServerHello)
    maps = []
    for greeting in (received, ServerHello(model_id="tiny", knows_levels=False, known_world=None)):
        for query in (speaker.embed(QUERY), QueryEmbedding(QUERY, speaker.embed(QUERY).tokens, "another")):
            allocator = allocator_for(Config(), SOURCE, greeting)
            allocator.set_query(query)
            maps.append(allocator.allocate(PictureStream().show(scenery(6, 8))).relevance)
    asked, unheard, untrained, without = maps
    assert not torch.allclose(asked, untrained, atol=0.01)
    assert not torch.allclose(asked, unheard, atol=1e-3)
    assert torch.equal(untrained, without)


def test_a_run_with_other_allocator_weights_is_another_run(trained: Path, tmp_path: Path) -> None:
    config = Config(source="scene:demo", answer=AnswerConfig(model=str(trained)))
    before = identity_of(config)
    weights = trained / "arr_coc" / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    after = identity_of(config)
    weights.write_bytes(data)
    assert before is not None
    assert after is not None
    assert {key for key in before if before[key] != after[key]} == {"model"}
