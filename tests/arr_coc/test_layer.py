"""The allocator that comes with the bundled model: it is that model's own, and finds the asked things."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import cv2
import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load

from arr_coc.adaptation.cases import Embedder
from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.errors import (
    BudgetError,
    ModelError,
    ModelNotFound,
    NonFiniteError,
    OptionError,
    ProfileError,
    ShapeError,
    StrategyError,
)
from arr_coc.layer import ARRCOCConfig, ARRCOCLayer, ARRCOCOutput
from arr_coc.layer_weights import deserialize_realiser, fingerprint, serialize_realiser
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import TextureArray
from arr_coc.types import QueryEmbedding
from stream.answer.model import CONFIGURED, load_answer_model
from stream.config import AnswerConfig, Config
from stream.protocol.messages import ServerHello, decode, encode
from stream.recording.identity import run_fingerprint
from stream.runtime.plan import RunPlan
from stream.sources import SourceInfo
from tests.support.models import tiny_folder
from tests.support.video import PictureStream, scenery
from training.allocator_compare import measure
from training.cases import cases_of, random_samples

FIRST_CLIP = 9_500_000
CLIPS = 40


@pytest.fixture(scope="module")
def qwen() -> QwenVL:
    return load_qwen()


def test_it_was_trained_for_the_weights_that_are_bundled(qwen: QwenVL) -> None:
    """Otherwise train it again: `python -m training.allocator_compare --runs runs/allocator --ways boxes --ship`."""
    assert qwen.realiser is not None
    assert qwen.realiser.knows(qwen.model_id)


def test_it_finds_more_of_what_is_asked_than_the_untrained_one(qwen: QwenVL) -> None:
    assert qwen.realiser is not None
    cases, embed = list(cases_of(random_samples("test", FIRST_CLIP, CLIPS))), Embedder(qwen)
    untrained = measure(RelevanceRealiser(), cases, embed, levels=True)["all"]
    trained = measure(qwen.realiser, cases, embed, levels=True)["all"]
    assert trained["cases"] > 150
    assert trained["recall"] > untrained["recall"] + 0.15
    assert trained["recall_small"] > 1.5 * untrained["recall_small"]
    assert trained["matched_iou"] > 1.6 * untrained["matched_iou"]


def grain(rng: np.random.Generator) -> np.ndarray:
    """White noise of 4 pixels, gray: uint8 [384, 640, 3]."""
    values = rng.integers(0, 256, (96, 160, 1), dtype=np.uint8)
    return np.tile(values.repeat(4, axis=0).repeat(4, axis=1), 3)


def test_the_void_guard_judges_the_picture_not_what_was_learned_of_its_places(qwen: QwenVL) -> None:
    """The trained scorers make structured maps of white noise."""
    rng = np.random.default_rng(5)
    thing = np.full((384, 640, 3), 120, np.uint8)
    thing[100:150, 400:450] = (220, 40, 40)
    for picture, strategy in [
        *((grain(rng), "grid") for _ in range(3)),
        (thing, "topk"),
    ]:
        allocator = StreamAllocator(AllocatorOptions(budget=64), qwen.realiser)
        allocator.set_query(qwen.embed_query("Say what happens."))
        assert allocator.allocate(PictureStream().show(picture)).strategy == strategy


def document(seed: int) -> np.ndarray:
    """A page with broad margins, a heading and paragraphs: uint8 [960, 1280, 3]."""
    rng, page = np.random.default_rng(seed), np.full((960, 1280, 3), 250, np.uint8)
    cv2.putText(page, "A HEADING", (160, 180), cv2.FONT_HERSHEY_DUPLEX, 1.2, (20, 20, 20), 2, cv2.LINE_AA)
    for y in range(230, 800, 21):
        letters = "".join(chr(97 + int(code)) for code in rng.integers(0, 26, 85))
        cv2.putText(page, letters, (160, y), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (30, 30, 30), 1, cv2.LINE_AA)
    return page


@pytest.mark.parametrize(
    "question", ["What does the text say?", "What colour is the circle?", "How many words are there?"]
)
def test_fixation_looks_at_the_print_of_a_document_not_at_its_margins(qwen: QwenVL, question: str) -> None:
    for seed in (0, 1):
        page = document(seed)
        allocator = StreamAllocator(AllocatorOptions("fixation", budget=100), qwen.realiser)
        allocator.set_query(qwen.embed_query(question))
        levels = allocator.allocate(PictureStream().show(page)).levels
        has_print = page.reshape(30, 32, 40, 32, 3).min(axis=(1, 3, 4)) < 128
        assert has_print[levels == 0].mean() > 0.55


ROWS, COLS, WIDTH = 8, 10, 16


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embeddings, a question and two pictures: dull ground with one striking patch."""
    generator = torch.Generator().manual_seed(0)
    image = torch.full((2, 3, ROWS * 32, COLS * 32), 0.3)
    image[0, :, 64:96, 96:160:6] = 1.0
    image[1, 0, 128:192, 32:64] = 1.0
    embeds = torch.randn(2, ROWS * COLS, WIDTH, generator=generator)
    return embeds, torch.randn(2, 5, WIDTH, generator=generator), image


def test_chosen_tokens_are_the_encoder_s_own(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    out = ARRCOCLayer(ARRCOCConfig(strategy="topk", budget=12))(embeds, query, image)
    assert out.tokens.shape == (2, 12, WIDTH)
    assert out.mask.all()
    for picture in range(2):
        row, col = out.positions[picture].long().T
        assert torch.equal(out.tokens[picture], embeds[picture, row * COLS + col])
    assert (out.budgets == 1024).all()


def test_with_every_tile_nothing_is_lost(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    out = ARRCOCLayer(ARRCOCConfig(budget=ROWS * COLS))(embeds, query, image)
    assert torch.equal(out.tokens, embeds)


def test_coarse_tokens_are_means_at_their_middles(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    out = ARRCOCLayer(ARRCOCConfig(strategy="foveated", budget=24))(embeds, query, image)
    grid = embeds.unflatten(1, (ROWS, COLS))
    for index, (level, row, col) in enumerate(out.allocation.regions[0].tolist()):
        if not out.mask[0, index]:
            continue
        side = 1 << level
        tiles = grid[0, row * side : (row + 1) * side, col * side : (col + 1) * side]
        assert torch.allclose(out.tokens[0, index], tiles.mean(dim=(0, 1)), atol=1e-5)
        assert out.budgets[0, index] == 1024 // 4**level
        assert out.positions[0, index].tolist() == [row * side + (side - 1) / 2, col * side + (side - 1) / 2]
    assert out.budgets[0].unique().numel() > 1


def test_the_limits_of_a_layer_are_those_of_its_budget(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    layer = ARRCOCLayer(ARRCOCConfig(strategy="topk", budget="adaptive", min_tokens=3, max_tokens=5))
    assert 3 <= layer(embeds, query[:, :, :4], image).mask.sum(dim=1).min() <= 5
    layer.configure(budget="auto", max_tokens=4)
    assert layer(embeds, query[:, :, :4], image).mask.sum(dim=1).tolist() == [4, 4]
    with pytest.raises(BudgetError, match="min_tokens, 9, is more than max_tokens, 4"):
        layer.configure(min_tokens=9)


def test_unequal_budgets_are_masked(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    image = image.clone()
    image[0] = 0.3
    out = ARRCOCLayer(ARRCOCConfig(strategy="topk", budget="adaptive"))(embeds, query[:, :, :4], image)
    first, second = out.mask.sum(dim=1).tolist()
    assert first != second
    longest = max(first, second)
    assert out.tokens.shape[1] == longest
    shorter = 0 if first < second else 1
    rest = slice(min(first, second), longest)
    for tensor in (out.tokens, out.positions, out.budgets):
        assert not tensor[shorter, rest].any()


def test_the_question_draws_tokens_without_training(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    embeds = embeds.clone()
    embeds[:, 7 * COLS + 9] = query.mean(dim=1) * 3
    layer = ARRCOCLayer(ARRCOCConfig(strategy="topk", budget=4))
    output, without_question = layer(embeds, query, image), layer(embeds, None, image)
    target = torch.tensor([7.0, 9.0])
    assert (output.positions == target).all(dim=2).any(dim=1).all()
    assert not (without_question.positions == target).all(dim=2).any()


def test_gradients_reach_embeddings_and_scorers(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    embeds.requires_grad_()
    layer = ARRCOCLayer(ARRCOCConfig(strategy="foveated", budget=24, query_dim=WIDTH))
    layer(embeds, query, image).tokens.square().sum().backward()
    assert embeds.grad is not None
    assert embeds.grad.any()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_bfloat16_stays_bfloat16(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    out = ARRCOCLayer(ARRCOCConfig(strategy="topk", budget=9))(embeds.bfloat16(), query.bfloat16(), image)
    assert out.tokens.dtype == torch.bfloat16
    assert out.positions.dtype == torch.float32


def test_a_saved_layer_is_loaded(inputs: tuple[torch.Tensor, ...], tmp_path: Path) -> None:
    layer = ARRCOCLayer(ARRCOCConfig(strategy="mixed", budget=20, query_dim=WIDTH, trained_for="tiny"))
    torch.nn.init.normal_(layer.realiser.information.gate.weight)
    layer.save_pretrained(tmp_path / "new" / "folder")
    copy = ARRCOCLayer.from_pretrained(tmp_path / "new" / "folder")
    assert copy.config == layer.config
    assert torch.equal(copy(*inputs).tokens, layer(*inputs).tokens)


def test_a_layer_on_the_hub_is_fetched_by_its_name(
    inputs: tuple[torch.Tensor, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ARRCOCLayer(ARRCOCConfig(strategy="topk", budget=7)).save_pretrained(tmp_path)
    request: dict[str, Any] = {}

    def snapshot_download(name: str, **options: Any) -> str:
        request.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    layer = ARRCOCLayer.from_pretrained("acme/allocator", token="hf_secret")
    assert layer(*inputs).mask.sum(dim=1).tolist() == [7, 7]
    assert (request["name"], request["token"]) == ("acme/allocator", "hf_secret")
    assert request["allow_patterns"] == ["config.json", "model.safetensors"]


def test_folders_that_hold_no_layer(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        ARRCOCLayer.from_pretrained(tmp_path)
    ARRCOCLayer().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "query_dim": 7}))
    with pytest.raises(ModelError, match="does not fit"):
        ARRCOCLayer.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**settings, "budge": 7}))
    with pytest.raises(ModelError, match="unknown keys: budge"):
        ARRCOCLayer.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        ARRCOCLayer.from_pretrained(tmp_path)


def test_shapes_that_do_not_fit(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    layer = ARRCOCLayer(ARRCOCConfig(query_dim=WIDTH))
    with pytest.raises(ShapeError, match="image must be"):
        layer(embeds, query, image[None])
    with pytest.raises(ShapeError, match=r"vision_embeds must be \[1, tiles, D\], got \[2, 80, 16\]"):
        layer(embeds, query, image[0])
    with pytest.raises(ShapeError, match=r"79 tokens .* 320x256 pixels \(its own is 8 \* 10\).*; give grid=\(rows, "):
        layer(embeds[:, 1:], query, image)
    with pytest.raises(ShapeError, match=r"a grid of 8 \* 9 does not have the 80 tokens"):
        layer(embeds, query, image, grid=(8, 9))
    with pytest.raises(ShapeError, match=r"uint8 or floating-point samples, got torch\.int64"):
        layer(embeds, query, image.long())
    with pytest.raises(ShapeError, match=r"\[2, Lq, Dq\]"):
        layer(embeds, query[:1], image)
    with pytest.raises(ShapeError, match="width 16, got 4"):
        layer(embeds, query[..., :4], image)


@pytest.mark.parametrize("broken", ["vision_embeds", "query_embeds", "image"])
def test_tensors_that_are_not_finite_are_named(inputs: tuple[torch.Tensor, ...], broken: str) -> None:
    tensors = dict(zip(("vision_embeds", "query_embeds", "image"), (t.clone() for t in inputs), strict=True))
    tensors[broken].view(-1)[5] = float("nan")
    with pytest.raises(NonFiniteError, match=broken):
        ARRCOCLayer()(*tensors.values())


def test_settings_that_do_not_hold(inputs: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises(StrategyError):
        ARRCOCLayer(ARRCOCConfig(strategy="best"))
    with pytest.raises(ValueError, match="coverage"):
        ARRCOCLayer(ARRCOCConfig(coverage=-1))
    with pytest.raises(BudgetError):
        ARRCOCLayer(ARRCOCConfig(budget=0))(*inputs)


@pytest.mark.parametrize("texture_channels", [13, 40])
@pytest.mark.parametrize("size", [(1024, 1024), (480, 640), (1080, 1920), (100, 80)])
def test_a_grid_of_1024_tokens_with_an_image_of_any_size(size: tuple[int, int], texture_channels: int) -> None:
    layer = ARRCOCLayer(hidden_dim=WIDTH, texture_channels=texture_channels, min_tokens=70, max_tokens=300)
    generator = torch.Generator().manual_seed(0)
    embeds, query = (torch.randn(1, count, WIDTH, generator=generator) for count in (1024, 4))
    image = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, generator=generator)
    out = layer(embeds, query, image)
    tokens = out.tokens.shape[1]
    assert 70 <= tokens <= 300
    assert (out.positions.shape, out.budgets.shape) == ((1, tokens, 2), (1, tokens))
    assert out.relevance.shape == (1, 32, 32)
    assert out.regions.shape == (1, tokens, 3)
    assert isinstance(out, ARRCOCOutput)
    array = layer(embeds, query, image[0].permute(1, 2, 0).numpy())
    assert torch.equal(array.relevance, out.relevance)


@pytest.mark.parametrize(
    ("size", "tiles", "grid"),
    [
        ((480, 720), 15 * 23, (15, 23)),  # the image's own, padded
        ((480, 720), 15 * 22, (15, 22)),  # rounded, as Qwen's processor does
        ((600, 800), 24 * 32, (24, 32)),
        ((800, 600), 24 * 32, (32, 24)),
        ((720, 1280), 900, (30, 30)),  # no grid of this aspect
        ((256, 1024), 1024, (16, 64)),
    ],
)
def test_the_grid_follows_from_tokens_and_aspect(size: tuple[int, int], tiles: int, grid: tuple[int, int]) -> None:
    out = ARRCOCLayer()(torch.randn(1, tiles, 8), None, torch.rand(1, 3, *size))
    assert out.relevance.shape == (1, *grid)
    other = ARRCOCLayer()(torch.randn(1, tiles, 8), None, torch.rand(1, 3, *size), grid=(1, tiles))
    assert other.relevance.shape == (1, 1, tiles)


def test_an_image_is_resampled_to_the_grid() -> None:
    """The most salient thing lies in the same tile at any size of the image."""
    layer, embeds = ARRCOCLayer(ARRCOCConfig(strategy="topk", budget=1)), torch.randn(1, 64, 8)
    for size_px in (64, 256, 1000):
        image = torch.zeros(1, 3, size_px, size_px)
        image[:, 0, size_px * 5 // 8 : size_px * 6 // 8, size_px * 2 // 8 : size_px * 3 // 8] = 1
        assert layer(embeds, None, image).positions.tolist() == [[[5, 2]]]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ARRCOCLayer(8, 14), ProfileError, "texture_channels is 13 or 40, got 14"),
        (lambda: ARRCOCLayer(-1), OptionError, "hidden_dim is the width"),
        (lambda: ARRCOCLayer(8, min_tokens=9, max_tokens=4), BudgetError, "min_tokens, 9, is more than max_tokens, 4"),
        (lambda: ARRCOCLayer(ARRCOCConfig(), min_tokens=9), OptionError, "its own sizes, got min_tokens too"),
    ],
)
def test_sizes_that_do_not_hold(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


WEIGHTS_WIDTH = 64
QUERY = "Is the cat sleeping?"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("plain") / "tiny")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with its own allocator, whose weights are random."""
    folder = tiny_folder(tmp_path_factory.mktemp("trained") / "tiny")
    name = fingerprint(load_qwen(folder).model.get_input_embeddings().weight)
    bring_allocator(folder, name)
    return folder


SOURCE = SourceInfo("a.mp4", 64, 48, 25.0, None, None, live=False, codec="h264", pixel_format="yuv420p")


def bring_allocator(folder: Path, trained_for: str, query_dim: int = WEIGHTS_WIDTH) -> None:
    torch.manual_seed(3)
    layer = ARRCOCLayer(ARRCOCConfig(query_dim=query_dim, trained_for=trained_for))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    layer.save_pretrained(folder / "arr_coc")


def relevance_of(realiser: RelevanceRealiser) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    texture = TextureArray(torch.rand(1, 13, 5, 6, generator=generator), torch.rand(1, 5, 6, generator=generator))
    return realiser(texture, torch.rand(1, 4, WEIGHTS_WIDTH, generator=generator)).relevance


def picture() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (160, 224, 3), dtype=np.uint8)


def test_a_name_of_weights_is_that_of_their_values_in_any_dtype() -> None:
    rows = torch.randn(20, 8).bfloat16()
    assert fingerprint(rows) == fingerprint(rows.float())
    assert fingerprint(rows) != fingerprint(rows * 1.01)


def test_the_library_allocates_with_what_came_with_the_model(plain: Path, trained: Path) -> None:
    stock, adapted = ARRCOCQwen.from_pretrained(plain), ARRCOCQwen.from_pretrained(trained)
    assert stock.qwen.realiser is None
    assert adapted.qwen.realiser is not None
    assert adapted.qwen.realiser.knows("tiny")
    heatmaps = [model.generate(picture(), QUERY, max_tokens=2, budget=9).heatmap for model in (stock, adapted)]
    assert not np.allclose(*heatmaps, atol=0.01)
    other = adapted.generate(picture(), "a red circle moves left", max_tokens=2, budget=9).heatmap
    assert not np.allclose(heatmaps[1], other, atol=1e-4)
    assert adapted.fallbacks == 0


def test_weights_for_another_model_are_reported_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, plain: Path
) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    bring_allocator(folder, "sha256:0123456789abcdef", query_dim=8)
    with caplog.at_level(logging.WARNING, "arr_coc"):
        qwen = load_qwen(folder)
    assert qwen.realiser is None
    (message,) = caplog.messages
    assert "not for these weights of tiny and are left out" in message
    assert "make others with `adapt`" in message
    heatmaps = [
        ARRCOCQwen(model).generate(picture(), QUERY, max_tokens=2).heatmap for model in (qwen, load_qwen(plain))
    ]
    assert np.array_equal(*heatmaps)


def test_a_model_that_was_trained_on_is_another_model(trained: Path, tmp_path: Path) -> None:
    qwen = load_qwen(trained)
    folder = tiny_folder(tmp_path / "tiny")
    with torch.no_grad():
        qwen.model.get_input_embeddings().weight[7] *= 1.1
    qwen.model.save_pretrained(folder)
    ARRCOCLayer.from_pretrained(trained / "arr_coc").save_pretrained(folder / "arr_coc")
    assert load_qwen(folder).realiser is None


def test_files_that_do_not_fit_are_an_error_of_one_line(trained: Path, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    ARRCOCLayer.from_pretrained(trained / "arr_coc").save_pretrained(folder / "arr_coc")
    weights = folder / "arr_coc" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="train it again") as broken:
        load_qwen(folder)
    assert "\n" not in str(broken.value)
    (folder / "arr_coc" / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is not usable JSON"):
        load_qwen(folder)


@pytest.mark.parametrize("scorer", ["film", "cross"])
def test_weights_travel_as_bytes(scorer: str) -> None:
    torch.manual_seed(0)
    realiser = RelevanceRealiser(WEIGHTS_WIDTH, "m", scorer)
    copy = deserialize_realiser(serialize_realiser(realiser), "m")
    assert copy is not None
    assert copy.knows("m")
    assert copy.scorer == scorer
    assert torch.equal(relevance_of(copy), relevance_of(realiser))
    assert deserialize_realiser(serialize_realiser(None), "m") is None


def test_equal_weights_are_equal_bytes() -> None:
    """A run makes no new allocator if another server has the same one."""
    realiser = RelevanceRealiser(8)
    data = serialize_realiser(realiser)
    assert {serialize_realiser(realiser) for _ in range(30)} == {data}
    assert load(data).keys() == realiser.state_dict().keys()


@pytest.mark.parametrize(
    "data",
    [
        b"noise",
        serialize_realiser(RelevanceRealiser()),
        serialize_realiser(RelevanceRealiser(8))[:-9],
        serialize_realiser(RelevanceRealiser(8)).replace(b'"cross"', b'"glues"'),
        serialize_realiser(RelevanceRealiser(8)).replace(b'"scorer"', b'"rerocs"'),
    ],
)
def test_bytes_that_are_no_weights_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match="came with m cannot be used; install the same version at both ends"):
        deserialize_realiser(data, "m")


def test_a_saved_layer_keeps_its_query_scorer(tmp_path: Path) -> None:
    layer = ARRCOCLayer(ARRCOCConfig(query_dim=WIDTH, scorer="film"))
    layer.save_pretrained(tmp_path)
    copy = ARRCOCLayer.from_pretrained(tmp_path)
    assert copy.config.scorer == copy.realiser.scorer == "film"
    torch.testing.assert_close(copy.state_dict(), layer.state_dict())


def test_the_stream_s_allocator_is_the_one_that_came_with_the_greeting(trained: Path) -> None:
    model = load_answer_model(CONFIGURED, Config(answer=AnswerConfig(model=str(trained))))
    hello = ServerHello(model_id=model.model_id, knows_levels=False, known_world=None, allocator=model.allocator)
    received = decode(encode(hello))
    assert isinstance(received, ServerHello)
    maps = []
    for greeting in (received, ServerHello(model_id="tiny", knows_levels=False, known_world=None)):
        for query in (model.embed_query(QUERY), QueryEmbedding(QUERY, model.embed_query(QUERY).tokens, "another")):
            allocator = RunPlan.of(Config(), SOURCE).make_allocator(greeting)
            allocator.set_query(query)
            maps.append(allocator.allocate(PictureStream().show(scenery(6, 8))).relevance)
    matching, foreign, untrained, without = maps
    assert not torch.allclose(matching, untrained, atol=0.01)
    assert not torch.allclose(matching, foreign, atol=1e-3)
    assert torch.equal(untrained, without)


def test_a_run_with_other_allocator_weights_is_another_run(trained: Path, tmp_path: Path) -> None:
    config = Config(source="scene:demo", answer=AnswerConfig(model=str(trained)))
    before = run_fingerprint(config)
    weights = trained / "arr_coc" / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    after = run_fingerprint(config)
    weights.write_bytes(data)
    assert before is not None
    assert after is not None
    assert {key for key in before if before[key] != after[key]} == {"model"}
