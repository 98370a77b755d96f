"""What is learned is what is used: training's packed questions give the logits that answering gives."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from arr_coc.qwen.checkpoint import family_of
from arr_coc.qwen.decode import PrefixCache, PromptPart, prefill
from arr_coc.qwen.encoding import EncodedFrame
from arr_coc.qwen.preprocess import PixelNormalisation, Preprocessing
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.vision import encode_regions
from training.model.batches import IGNORED, Batch, random_batches
from training.model.network import Learner, new_model
from training.model.tokenizer import scenes_tokenizer


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(new_model(seed=3)).eval()


@pytest.fixture(scope="module", params=[1, 3], ids=["picture", "clip"])
def batch(request: pytest.FixtureRequest) -> Batch:
    """Two clips of so many frames, with questions."""
    for whole in random_batches(5, SimpleNamespace(value=1.0)):
        known = bool((whole.places[:2] != IGNORED).any())
        if known and whole.regions.shape[1] == request.param and whole.regions.shape[2] < 120:
            return Batch(whole.grid, *(tensor[:2] for tensor in whole.tensors))  # frames see those before them
    raise AssertionError


@torch.inference_mode()
def test_packed_questions_have_the_logits_of_each_question_asked_alone(learner: Learner, batch: Batch) -> None:
    qwen = QwenVL(
        learner.model,
        scenes_tokenizer(),
        Preprocessing(16, PixelNormalisation(), 1024, 1 << 22),
        "scenes",
        family_of("qwen3_vl", "scenes"),
    )
    frames = batch.regions.shape[1]
    visual = encode_regions(qwen.tower, batch.pixels.flatten(0, 1), batch.regions.flatten(0, 1), batch.grid)
    packed = learner._answers(batch, visual)
    ids = prompt_ids(qwen, None)
    for clip in range(2):
        for question in range(batch.ids.shape[1]):
            learned = batch.labels[clip, question] != IGNORED
            first = int(learned.nonzero()[0])
            part = PromptPart(qwen, 0, 0)
            part.text(ids.head)
            for frame in range(frames):
                part.text((*batch.times[clip, frame].tolist(), *ids.frame_open))
                row = slice(clip * frames + frame, clip * frames + frame + 1)
                tokens = visual.map(lambda rows, row=row: rows[row])
                part.frame(EncodedFrame(tokens, batch.regions[clip, frame : frame + 1], batch.grid))
                part.text(ids.frame_close)
            part.text(batch.ids[clip, question, :first].tolist())
            alone = prefill(qwen, part, PrefixCache().kv)
            torch.testing.assert_close(packed[clip, question, first - 1], alone.flatten(), atol=3e-4, rtol=1e-3)


def test_all_losses_reach_the_vision_tower_and_the_language_model(learner: Learner, batch: Batch) -> None:
    losses = learner(batch)
    assert losses.total.item() == pytest.approx(losses.answer + losses.place + losses.token, rel=1e-4)
    losses.total.backward()
    towers = (learner.model.model.visual, learner.model.model.language_model, learner.head, learner.locator)
    for tower in towers:
        assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in tower.parameters())
    learner.zero_grad()


def test_where_things_are_is_asked_of_the_last_token_before_each_answer(learner: Learner, batch: Batch) -> None:
    clips, questions, steps = batch.ids.shape
    hidden = torch.zeros(clips, 50 + questions * steps, 192)
    asked = hidden[:, -questions * steps :].unflatten(1, (questions, steps))
    blind = learner._place_loss(batch, hidden).item()
    last = ((batch.labels != IGNORED).int().argmax(-1) - 1)[..., None, None].expand(-1, -1, 1, 192)
    asked.scatter_(2, last, 1.0)
    assert learner._place_loss(batch, hidden).item() != pytest.approx(blind), "what stands there counts"
    hidden += 1.0
    asked.scatter_(2, last, 0.0)
    assert learner._place_loss(batch, hidden).item() == pytest.approx(blind), "nothing else does"


def test_the_model_is_small_and_says_what_it_knows(learner: Learner) -> None:
    assert 4e6 < sum(parameter.numel() for parameter in learner.model.parameters()) < 6e6
    assert learner.model.config.arr_coc_levels is True
    assert learner.model.config.arr_coc_world == "drawn scenes"


@torch.inference_mode()
def test_frames_apart_do_not_see_each_other(learner: Learner) -> None:
    for whole in random_batches(5, SimpleNamespace(value=1.0)):
        if whole.ids.numel() and whole.regions.shape[1] == 2 and whole.regions.shape[2] < 120:
            break
    visual = encode_regions(learner.model.model.visual, *_frames(whole), whole.grid)
    other = visual.map(lambda rows: torch.cat([torch.zeros_like(rows[:1]), rows[1:]]))
    states: list[torch.Tensor] = []
    hook = learner.model.model.language_model.layers[2].register_forward_hook(lambda *seen: states.append(seen[-1]))
    for apart in (True, False):
        for shown in (visual, other):
            learner._answers(replace(whole, apart=apart), shown)
    hook.remove()
    apart, apart_other, after, after_other = (state[0] for state in states)
    shared = apart.shape[0] - whole.ids.shape[1] * whole.ids.shape[2]
    second = shared - 5  # a visual token of the second frame
    assert torch.equal(apart[second], apart_other[second])
    assert not torch.equal(after[second], after_other[second])
    assert not torch.equal(apart[shared:], apart_other[shared:]), "questions see all frames"


def _frames(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return batch.pixels.flatten(0, 1), batch.regions.flatten(0, 1)
