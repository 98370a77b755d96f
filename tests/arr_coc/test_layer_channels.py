"""Layers and streams whose scorers see forty channels: saved, sent, and fed back."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import StreamAllocator
from arr_coc.allocation.packets import packet_from
from arr_coc.errors import ModelError, OptionError, ProfileError
from arr_coc.layer import ARRCOCConfig, ARRCOCLayer
from arr_coc.layer_weights import deserialize_realiser, fingerprint, serialize_realiser
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.session import AnswerSession
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.history import EMBEDDING, QUESTION
from arr_coc.types import Feedback, Work
from stream.answer.model import CONFIGURED, load_answer_model
from stream.config import AllocateConfig, AnswerConfig, Config
from stream.protocol.codec import feedback_arrays, feedback_of, specs_of
from stream.protocol.messages import AnswerReply, ServerHello, decode, encode
from stream.runtime.plan import RunPlan
from stream.sources import SourceInfo
from tests.support.models import tiny_folder
from tests.support.video import PictureStream, scenery

SOURCE = SourceInfo("a.mp4", 64, 48, 25.0, None, None, live=False, codec="h264", pixel_format="yuv420p")
WIDTH = 24
QUERY = "where is the star?"


def reading_all_channels(layer: ARRCOCLayer) -> ARRCOCLayer:
    query_scorer = layer.realiser.participation.asked
    assert query_scorer is not None
    torch.nn.init.normal_(query_scorer.near.weight, std=0.3)
    return layer


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    pictures = np.stack([scenery(4, 5), scenery(4, 5, seed=1)])
    return (
        torch.randn(2, 20, WIDTH, generator=generator),
        torch.randn(2, 3, WIDTH, generator=generator),
        torch.from_numpy(pictures).permute(0, 3, 1, 2),
    )


def test_a_layer_sees_the_embeddings_of_its_tiles(inputs: tuple[torch.Tensor, ...]) -> None:
    torch.manual_seed(0)
    layer = reading_all_channels(ARRCOCLayer(ARRCOCConfig(query_dim=WIDTH, channels="full40", budget=8)))
    vision, query, image = inputs
    first = layer(vision, query, image)
    assert first.tokens.shape == (2, 8, WIDTH)
    other = layer(vision.flip(1), query, image)
    assert not torch.allclose(first.scores[:, 2], other.scores[:, 2], atol=1e-3)
    vision.requires_grad_()
    layer(vision, query, image).scores[:, 2].sum().backward()
    assert vision.grad is not None
    assert (vision.grad != 0).any()


def test_channels_that_training_never_showed_say_nothing(inputs: tuple[torch.Tensor, ...]) -> None:
    layer = ARRCOCLayer(ARRCOCConfig(query_dim=WIDTH, channels="full40", budget=8))
    vision, query, image = inputs
    scores = [layer(embeds, query, image).scores[:, 2] for embeds in (vision, vision.flip(1))]
    assert torch.equal(*scores)
    for name, weight in layer.named_parameters():
        if name.endswith("near.weight"):
            assert not weight[:, [*range(40)[EMBEDDING], QUESTION]].any()


def test_a_saved_layer_is_loaded_with_its_channels_and_axes(tmp_path: Path) -> None:
    layer = ARRCOCLayer(ARRCOCConfig(query_dim=WIDTH, channels="full40+text"))
    assert layer.realiser.axes is not None
    layer.realiser.axes.fit(torch.randn(64, WIDTH))
    layer.save_pretrained(tmp_path)
    copy = ARRCOCLayer.from_pretrained(tmp_path)
    assert copy.config.channels == copy.realiser.channels == "full40+text"
    torch.testing.assert_close(copy.state_dict(), layer.state_dict(), rtol=0, atol=0)
    with pytest.raises(OptionError, match="no option channels to change"):
        copy.configure(channels="core13")


def test_channels_that_there_are_not(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="there are core13, full40, full40\\+text"):
        ARRCOCLayer(ARRCOCConfig(channels="full41"))
    ARRCOCLayer().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "channels": "full41"}))
    with pytest.raises(ModelError, match="unknown texture profile 'full41'"):
        ARRCOCLayer.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**settings, "channels": "full40"}))
    with pytest.raises(ModelError, match=r"does not fit config\.json") as error:
        ARRCOCLayer.from_pretrained(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("channels", ["core13", "full40", "full40+text"])
def test_weights_travel_with_their_channels(channels: str) -> None:
    realiser = RelevanceRealiser(WIDTH, "m", channels=channels)
    copy = deserialize_realiser(serialize_realiser(realiser), "m")
    assert copy is not None
    assert copy.channels == channels
    torch.testing.assert_close(copy.state_dict(), realiser.state_dict(), rtol=0, atol=0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with an allocator of forty channels, whose weights are random."""
    folder = tiny_folder(tmp_path_factory.mktemp("trained") / "tiny")
    embeddings = load_qwen(folder).model.get_input_embeddings().weight
    torch.manual_seed(3)
    config = ARRCOCConfig(query_dim=embeddings.shape[1], trained_for=fingerprint(embeddings), channels="full40")
    reading_all_channels(ARRCOCLayer(config)).save_pretrained(folder / "arr_coc")
    return folder


def allocator_of(folder: Path, **allocate: object) -> StreamAllocator:
    """The allocator that a stream makes from its server's greeting."""
    model = load_answer_model(CONFIGURED, Config(answer=AnswerConfig(model=str(folder))))
    hello = ServerHello(model_id=model.model_id, knows_levels=False, known_world=None, allocator=model.allocator)
    received = decode(encode(hello))
    assert isinstance(received, ServerHello)
    config = Config(allocate=AllocateConfig(budget=12, **allocate))  # type: ignore[arg-type]
    allocator = RunPlan.of(config, SOURCE).make_allocator(received)
    allocator.set_query(model.embed_query(QUERY))
    return allocator


def after_transfer(feedback: Feedback) -> Feedback:
    """Packet that the other side of a connection gets."""
    arrays = feedback_arrays(feedback)
    reply = AnswerReply(answer=0, text="", work=Work(0), feedback_stamp=feedback.stamp, arrays=specs_of(*arrays))
    received = decode(encode(reply))
    assert isinstance(received, AnswerReply)
    result = feedback_of(received, [array.tobytes() for array in arrays])
    assert result is not None
    return result


def test_an_answer_s_embeddings_reach_the_stream_s_channels(trained: Path) -> None:
    session = AnswerSession(load_qwen(trained), AnswerOptions(decoding=Decoding(max_tokens=2)))
    stream, allocator, picture = PictureStream(), allocator_of(trained), scenery(6, 9)
    view = stream.show(picture)
    first = allocator.allocate(view)
    "".join(session.answer(packet_from(view, first), QUERY))
    allocator.mark_answered()
    feedback = session.last.feedback
    assert feedback is not None
    assert feedback.embedding is not None
    assert feedback.embedding.shape == (12, 16)
    assert feedback.embedding.dtype == np.float32
    assert feedback.embedding.any()
    allocator.apply_feedback(after_transfer(feedback))
    second = allocator.allocate(stream.show(picture))
    assert not torch.allclose(second.scores[2], first.scores[2], atol=1e-3)


def test_a_model_of_thirteen_channels_feeds_no_embeddings_back(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    session = AnswerSession(load_qwen(folder), AnswerOptions(decoding=Decoding(max_tokens=1)))
    view = PictureStream().show(scenery(4, 5))
    "".join(session.answer(packet_from(view, StreamAllocator().allocate(view)), QUERY))
    assert session.last.feedback is not None
    assert session.last.feedback.embedding is None


def test_the_model_s_allocator_decides_which_channels_a_stream_computes(
    trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    view, caplog.handler.level = PictureStream().show(scenery(6, 9)), logging.WARNING
    for channels in ("auto", "full40"):
        allocator_of(trained, channels=channels).allocate(view)
    assert not caplog.messages
    allocator_of(trained, channels="core13").allocate(view)
    assert caplog.messages == [
        "the model's allocator was trained on the channels full40; it is given these, not core13"
    ]
