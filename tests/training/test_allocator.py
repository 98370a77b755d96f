"""Training an allocator: what it learns from, that it learns, and that nothing is lost when it is killed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer import Exit

from arr_coc.adaptation import trainer as trainer_module
from arr_coc.adaptation.accuracy import map_accuracy, measure
from arr_coc.adaptation.cases import AllocatorCase, Batches, Embedder, tile_shares
from arr_coc.adaptation.losses import LEAST_SHARE, box_loss, realised_loss
from arr_coc.adaptation.trainer import new_layer
from arr_coc.adaptation.training_run import CHECKPOINT
from arr_coc.errors import ModelError, ModelNotFound, OptionError
from arr_coc.layer import ARRCOCLayer
from arr_coc.layer_weights import load_bundled_layer
from arr_coc.qwen.attention import probed_layers
from arr_coc.qwen.cache import empty_cache
from arr_coc.qwen.decode import PromptPart, decode_one_token, prefill
from arr_coc.qwen.encoding import encode_packet
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.preprocess import grid_regions
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.relevance.balancing import RelevanceMaps, RelevanceRealiser
from arr_coc.relevance.channels import image_texture
from arr_coc.types import FramePacket, FrameStamp, TileGrid
from tests.support.models import tiny_folder, tiny_qwen
from training.allocator import Recipe, answer_objective, boxes_objective, make_trainer, train
from training.allocator_compare import main as compare_main
from training.cases import cases_of, random_samples
from training.clips.truth import Clip, Sample
from training.objectives import AnswerLoss, attended, gumbel_topk, last_layers

CLIPS = 8


@pytest.fixture(scope="module")
def qwen() -> QwenVL:
    return tiny_qwen()


@pytest.fixture(scope="module")
def cases() -> list[AllocatorCase]:
    return list(cases_of(random_samples("train", 0, CLIPS)))


def test_samples_are_the_same_on_every_call_and_others_in_each_split() -> None:
    first, repeat, other = (
        [(sample.question, sample.boxes) for sample in random_samples(split, 0, 3)]
        for split in ("train", "train", "test")
    )
    assert first == repeat
    assert first != other
    assert len({question for question, _ in first}) > 3


def test_the_target_of_a_tile_is_its_asked_share() -> None:
    shares = tile_shares([(16, 0, 48, 32), (90, 40, 200, 50)], (2, 4), (32, 32))
    assert shares.tolist() == [[0.5, 0.5, 0, 0], [0, 0, pytest.approx(60 / 1024), pytest.approx(320 / 1024)]]


def test_cases_are_frames_in_which_what_is_asked_is_to_be_seen() -> None:
    frames = tuple(np.full((64, 96, 3), level, np.uint8) for level in (10, 200, 90))
    everywhere = ((0.0, 0.0, 96.0, 64.0),)
    boxes = (((33.0, 0.0, 60.0, 30.0),), (), everywhere)
    sample = Sample(Clip(frames, (0.0, 0.5, 1.0), ((), (), ())), "event", "What left?", "a star.", boxes)
    (case,) = cases_of([sample])
    assert case.target.shape == case.texture.entropy.shape == (2, 3)
    assert (case.target > 0).nonzero().tolist() == [[0, 1]]
    assert case.texture.channels[0, 0, 0] == pytest.approx(10 / 255)
    assert case.image is None
    (with_image,) = cases_of([sample], with_images=True)
    assert with_image.image is frames[0]


def test_batches_hold_one_grid_and_pad_questions_with_zeros(qwen: QwenVL, cases: list[AllocatorCase]) -> None:
    batches = Batches(cases, Embedder(qwen), np.random.default_rng(0), tiles=1024)
    for _ in range(5):
        selection = batches.pick()
        batch = batches.collate(selection)
        assert batch.texture.channels.shape[2:] == batch.target.shape[1:] == batch.texture.entropy.shape[1:]
        for case, query in zip(selection, batch.query, strict=True):
            words = torch.from_numpy(qwen.embed_query(case.question).tokens)
            assert torch.equal(query[: len(words)], words)
            assert not query[len(words) :].any()


def test_the_loss_is_least_where_relevance_is_what_is_wanted() -> None:
    target = torch.zeros(2, 4, 5)
    target[:, 1, 2:4] = 1
    right, blank = target.clone(), torch.full_like(target, 0.1)
    half, wrong = target.clone(), target.flip(1)
    half[:, 1, 3] = 0.3
    values = [box_loss(relevance, target).item() for relevance in (right, half, blank, wrong)]
    assert values == sorted(values)
    assert values[0] < 0.3 < values[3] < 20


def test_a_score_that_balancing_silences_learns_all_the_same() -> None:
    scores = torch.full((1, 3, 4, 5), 0.4, requires_grad=True)
    target = torch.zeros(1, 4, 5)
    target[:, 1, 2] = 1
    silenced = RelevanceMaps(scores[:, 2], scores, torch.tensor([[0.0, 0.0, 1.0]]))
    realised_loss(silenced, target, box_loss).backward()
    assert scores.grad is not None
    assert (scores.grad[0, :, 1, 2] < 0).all()
    assert (scores.grad[0, :, 3, 4] > 0).all()


def test_one_batch_is_learned_by_heart(qwen: QwenVL, cases: list[AllocatorCase]) -> None:
    batches = Batches(cases, Embedder(qwen), np.random.default_rng(0), tiles=64)
    batch = batches.next()
    torch.manual_seed(0)
    realiser = new_layer(qwen).realiser
    optimiser = torch.optim.Adam(realiser.parameters(), lr=3e-3)
    for _ in range(200):
        realised = realiser(batch.texture, batch.query)
        optimiser.zero_grad()
        realised_loss(realised, batch.target, box_loss).backward()
        optimiser.step()
    matched = []
    for found_map, target in zip(realised.relevance.detach(), batch.target, strict=True):
        assert target.flatten()[found_map.argmax()] > LEAST_SHARE
        matched.append(map_accuracy(found_map, target, levels=False).matched_iou)
    assert np.mean(matched) > 0.6, matched


def test_training_makes_an_allocator_that_its_model_uses_and_that_finds_more(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", tie_word_embeddings=True)
    layer = train(folder, Recipe(steps=160, clips=40), tmp_path / "run")
    (tmp_path / "run" / "arr_coc").rename(folder / "arr_coc")
    qwen = tiny_qwen(tie_word_embeddings=True)
    bundled = load_bundled_layer(folder, qwen.model.get_input_embeddings().weight, "tiny")
    assert bundled is not None
    test_cases, embed = list(cases_of(random_samples("train", 1000, 12))), Embedder(qwen)
    untrained = measure(RelevanceRealiser(), test_cases, embed, levels=True)["all"]
    trained = measure(bundled.realiser, test_cases, embed, levels=True)["all"]
    assert trained["cases"] == untrained["cases"] > 30
    assert trained["recall"] > untrained["recall"]
    saved = ARRCOCLayer.from_pretrained(folder / "arr_coc")
    assert saved.config == layer.config
    lines = (tmp_path / "run" / "loss.jsonl").read_text().splitlines()
    assert all(json.loads(line).keys() == {"step", "minutes", "loss"} for line in lines)


def test_a_killed_run_goes_on_from_its_checkpoint(
    qwen: QwenVL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "SAVE_S", 0.0)
    recipe = Recipe(steps=100, clips=CLIPS)
    killed = make_trainer(recipe, new_layer(qwen), tmp_path)
    objective = boxes_objective(recipe, qwen, new_layer(qwen), np.random.default_rng(0))

    def dying(realiser: RelevanceRealiser) -> torch.Tensor:
        if killed.course.steps == 5:
            raise KeyboardInterrupt
        return objective(realiser)

    with pytest.raises(KeyboardInterrupt):
        killed.run(dying)
    resumed = make_trainer(recipe, new_layer(qwen), tmp_path)
    resumed.course.resume()
    assert resumed.course.steps == 5
    assert resumed.course.spent_s == killed.course.spent_s > 0
    for name, value in killed.layer.state_dict().items():
        assert torch.equal(resumed.layer.state_dict()[name], value)
    before = resumed.step(objective)
    assert np.isfinite(before)
    assert resumed.course.steps == 6


def test_checkpoints_that_do_not_fit_say_so_in_one_line(qwen: QwenVL, tmp_path: Path) -> None:
    recipe = Recipe(clips=1)
    with pytest.raises(ModelNotFound, match="leave out --resume"):
        make_trainer(recipe, new_layer(qwen), tmp_path).course.resume()
    make_trainer(recipe, new_layer(qwen), tmp_path).save()
    for other, layer in (
        (Recipe(objective="answer"), new_layer(qwen)),
        (recipe, new_layer(tiny_qwen(seed=9))),
    ):
        with pytest.raises(ModelError, match="another way, or for other weights of the model; begin anew") as error:
            make_trainer(other, layer, tmp_path).course.resume()
        assert "\n" not in str(error.value)
    (tmp_path / CHECKPOINT).write_bytes(b"noise")
    with pytest.raises(ModelError, match=r"does not fit: .*; begin anew in another folder") as broken:
        make_trainer(recipe, new_layer(qwen), tmp_path).course.resume()
    assert "\n" not in str(broken.value)


def test_a_way_of_training_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown way of training 'luck'; there are boxes"):
        train(tmp_path, Recipe(objective="luck"), tmp_path)  # type: ignore[arg-type]


def test_measured_figures() -> None:
    target = torch.zeros(8, 8)
    target[2:4, 4:6] = 1
    right = map_accuracy(target * 0.9, target, levels=False)
    assert (right.recall, right.recall_small, right.matched_iou) == (1, 1, 1)
    assert right.iou == right.iou_bound == 4 / 16
    wrong = map_accuracy((1 - target) * torch.linspace(0.5, 0.9, 64).view(8, 8), target, levels=False)
    assert wrong.matched_iou == 0
    assert wrong.recall < 0.5
    assert wrong.iou < wrong.iou_bound


def test_attention_is_that_of_the_prompts_last_token_on_a_frame_shown_alone_with_all_its_tokens(
    qwen: QwenVL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arr_coc.qwen.attention.glanced_layers", probed_layers)  # those that an answer reports
    samples = [sample for sample in random_samples("train", 0, 12, 2) if sample.clip.size_px[0] <= 512]
    stills = [sample for sample in samples if len(sample.clip.frames) == 1][:2]
    films = [sample for sample in samples if len(sample.clip.frames) > 1 and all(sample.boxes)][:1]
    attention_cases = list(attended([*stills, *films], qwen))
    pictures = [(sample, image) for sample in [*stills, *films] for image in sample.clip.frames]
    assert len(attention_cases) == len(pictures) > 3
    session = AnswerSession(qwen, AnswerOptions(encode="full", decoding=Decoding(max_tokens=1)))
    for case, (sample, image) in zip(attention_cases, pictures, strict=True):
        assert case.question == sample.question
        assert case.target.max() == pytest.approx(1)
        assert case.target.min() >= 0
        assert torch.equal(
            case.texture.channels, image_texture(torch.from_numpy(image).permute(2, 0, 1)[None]).channels[0]
        )
        grid = TileGrid.of(*image.shape[:2])
        regions, blank = grid_regions(grid).numpy().astype(np.int32), np.zeros(grid.shape, np.float32)
        for _ in session.answer(FramePacket(FrameStamp(0, 0, 0), grid, regions, blank, image), sample.question):
            pass
        assert session.last.feedback is not None
        reported = session.last.feedback.attention.reshape(grid.shape)
        assert np.allclose(case.target.numpy(), reported, atol=1e-5)


def test_a_choice_by_chance_prefers_what_is_relevant_and_repeats_nothing() -> None:
    relevance = torch.full((2, 4, 5), 0.02)
    relevance[:, 2, 3] = 0.99
    rng = np.random.default_rng(0)
    draws = torch.stack([gumbel_topk(relevance, 4, rng) for _ in range(50)])
    assert draws.shape == (50, 2, 4)
    assert (draws[..., 1:] > draws[..., :-1]).all()
    hits = (draws == 2 * 5 + 3).any(dim=-1).float().mean()
    assert hits > 0.95
    assert len(draws.unique()) > 15


def test_the_answer_s_loss_is_the_model_s_own(qwen: QwenVL) -> None:
    """Shown all tiles, the loss is that of the logits which answering itself gives."""
    cases = list(cases_of(random_samples("train", 0, 3), with_images=True))[:2]
    loss = AnswerLoss(qwen, Batches(cases, Embedder(qwen), np.random.default_rng(0)), np.random.default_rng(0))
    for case in cases:
        all_tiles = torch.arange(case.target.numel())[None]
        loss_value = loss._loss([case], torch.full((1, *case.target.shape), 0.3), all_tiles)
        reply = [*qwen.plain_token_ids(case.answer), qwen.tokenizer.eos_token_id]
        assert case.image is not None
        grid = TileGrid.of(*case.image.shape[:2])
        packet = FramePacket(FrameStamp(0, 0, 0), grid, all_tiles.numpy(), case.target.numpy(), case.image)
        ids, part, cache = prompt_ids(qwen, None), PromptPart(qwen, 0, 0), empty_cache(qwen)
        part.text([*ids.head, *ids.frame_open])
        part.frame(encode_packet(qwen, packet, "full"))
        part.text([*ids.frame_close, *ids.before_query, *qwen.plain_token_ids(case.question), *ids.after_query])
        logits = [prefill(qwen, part, cache)]
        for index, token in enumerate(reply[:-1]):
            logits.append(decode_one_token(qwen, torch.tensor(token), part.position + index, cache.kv))
        expected = torch.nn.functional.cross_entropy(torch.stack(logits), torch.tensor(reply))
        assert loss_value.item() == pytest.approx(expected.item(), abs=1e-4)


def test_the_answer_s_loss_teaches_the_allocator_and_then_the_last_layers(tmp_path: Path) -> None:
    qwen = tiny_qwen()
    recipe = Recipe("answer", steps=4, clips=60)
    trainer = make_trainer(recipe, new_layer(qwen), tmp_path, last_layers(qwen))
    objective = answer_objective(recipe, qwen, new_layer(qwen), np.random.default_rng(0))
    before = {name: value.clone() for name, value in qwen.model.state_dict().items()}
    scorer = trainer.layer.realiser.participation.asked
    assert scorer is not None
    first = scorer.near.weight.clone()
    trainer.step(objective)
    assert not torch.equal(scorer.near.weight, first)
    assert all(torch.equal(value, before[name]) for name, value in qwen.model.state_dict().items())
    trainer.course.steps = 3
    trainer.step(objective)
    changes = {name for name, value in qwen.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changes
    assert all(".layers.2." in name for name in changes)


def test_an_earlier_models_layer_is_begun_with_and_becomes_this_models(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    layer_of_model = new_layer(load_qwen(folder))
    base = ARRCOCLayer(replace(layer_of_model.config, trained_for="sha256:another"))
    base.save_pretrained(tmp_path / "earlier")
    recipe = Recipe(steps=1, rate=1e-12, clips=4)
    layer = train(folder, recipe, tmp_path / "run", begin_with=tmp_path / "earlier")
    assert layer.config == layer_of_model.config
    torch.testing.assert_close(layer.state_dict(), base.state_dict())
    embeddings = load_qwen(folder).model.get_input_embeddings().weight
    assert load_bundled_layer(tmp_path / "run", embeddings, "tiny") is not None
    ARRCOCLayer(replace(layer_of_model.config, query_dim=layer_of_model.config.query_dim + 8)).save_pretrained(
        tmp_path / "wide"
    )
    with pytest.raises(ModelError, match="embeddings are"):
        train(folder, recipe, tmp_path / "other", begin_with=tmp_path / "wide")


def test_the_comparison_ships_the_best_and_says_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, runs, out = tiny_folder(tmp_path / "tiny"), tmp_path / "runs", tmp_path / "results" / "allocator.json"
    layers = {name: new_layer(load_qwen(folder)) for name in ("boxes", "attention", "answer", "answer-after-boxes")}
    for name, layer in layers.items():
        recipe = Recipe("answer" if name.startswith("answer") else name, minutes=0.0)  # type: ignore[arg-type]
        along = last_layers(load_qwen(folder)) if recipe.objective == "answer" else None
        trainer = make_trainer(recipe, layer, runs / name, along)
        trainer.course.spent_s = 1.0
        trainer.save()
    compare_main(runs, str(folder), ",".join(layers), 0.01, 1, 4, out, ship=True)
    results = json.loads(out.read_text())
    assert set(results["test"]) == {"untrained", *layers, "the boxes themselves"}
    assert results["best"] in layers
    assert results["test"]["the boxes themselves"]["all"]["matched_iou"] == 1
    assert load_qwen(folder).realiser is not None
    with pytest.raises(Exit):
        compare_main(runs, str(folder), "luck")
    assert "error: unknown way of training 'luck'; there are boxes, attention" in capsys.readouterr().err


def test_an_allocator_of_forty_channels_learns_with_its_past_and_is_resumed_only_as_such(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", tie_word_embeddings=True)
    layer = train(folder, Recipe(steps=3, clips=2, channels="full40", past=True), tmp_path / "run")
    assert layer.realiser.axes is not None
    assert layer.realiser.participation.asked is not None
    assert layer.realiser.participation.asked.near.weight[:, 17:33].any(), "embeddings were learned from"
    assert not layer.realiser.participation.asked.near.weight[:, 10].any(), "motion was not"
    with pytest.raises(ModelError, match="made in another way"):
        train(folder, Recipe(steps=9, clips=2, past=True), tmp_path / "run", resume=True)
