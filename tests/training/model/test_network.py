"""What is learned is what is used: training's packed questions give the logits that answering gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from arr_coc.qwen.cache import PrefixCache, empty_cache
from arr_coc.qwen.decode import PromptPart, prefill
from arr_coc.qwen.encoding import encode_packet
from arr_coc.qwen.families import family_of
from arr_coc.qwen.preprocess import PixelNormalisation, Preprocessing
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import LEVELS, FrameStamp, TokenPacket
from training.model.batches import IGNORED, Batch, Prompter, make_batch
from training.model.lessons import BatchPlan, Teacher
from training.model.network import Learner, new_model
from training.model.tokenizer import scenes_tokenizer
from training.model.views import Viewer


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(new_model(seed=3)).eval()


def batch_of(frames: int, *, overview: int = 0, wide: bool = False) -> Batch:
    """Two clips of 256x256 pixels, so many frames of 24 tokens each, with questions."""
    rng = np.random.default_rng(5)
    plan = BatchPlan(True, 0, False, False, frames, (256, 256), 24, "foveated", overview=overview, wide=wide)
    return make_batch(plan, Teacher(rng), Viewer(rng), Prompter(), rng).clips(2)


@pytest.fixture(scope="module", params=[1, 3], ids=["picture", "clip"])
def batch(request: pytest.FixtureRequest) -> Batch:
    """Two clips of so many frames, with questions; frames see those before them."""
    return batch_of(request.param)


def packet_of(batch: Batch, clip: int, frame: int) -> TokenPacket:
    """A frame of a batch as an answer stage gets it."""
    regions = batch.regions[clip, frame].numpy().astype(np.int32)
    relevance = np.ones(len(regions), np.float32)
    pixels = batch.pixels[clip, frame].numpy()
    return TokenPacket(FrameStamp(frame, frame, 0), batch.grid, regions, relevance, pixels, batch.overview)


@torch.inference_mode()
def prefilled_logits(
    qwen: QwenVL, packets: Sequence[TokenPacket], headings: Sequence[Sequence[int]], question: list[int]
) -> torch.Tensor:
    """Logits [vocabulary] of what follows frames, each behind a heading, and a question, as an answer stage reads
    them."""
    ids = prompt_ids(qwen, None)
    cache: PrefixCache[object] = empty_cache(qwen)
    part = PromptPart(qwen, 0, 0)
    part.text(ids.head)
    for packet, heading in zip(packets, headings, strict=True):
        part.text((*heading, *ids.frame_open))
        part.frame(encode_packet(qwen, packet, "sparse"))
        part.text(ids.frame_close)
    part.text(question)
    return prefill(qwen, part, cache).flatten()


def answering_logits(qwen: QwenVL, batch: Batch, clip: int, question: list[int]) -> torch.Tensor:
    """Logits [vocabulary] of what follows a clip and a question."""
    packets = [packet_of(batch, clip, frame) for frame in range(batch.regions.shape[1])]
    return prefilled_logits(qwen, packets, batch.times[clip].tolist(), question)


LAYOUTS = {
    "picture": (1, 0, False),
    "clip": (3, 0, False),
    "overview": (1, 6, False),
    "clip with overviews": (2, 6, False),
    "glance": (1, 24, False),
    "clip with overviews and strips": (2, 6, True),
}
"""Name → frames, tokens of an overview, strips."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_has_the_logits_of_answering(learner: Learner, layout: str) -> None:
    frames, overview, wide = LAYOUTS[layout]
    batch = batch_of(frames, overview=overview, wide=wide)
    assert bool((batch.regions[..., 0] >= LEVELS).any()) == wide
    assert batch.overview == (4 if overview == 6 else 16 if overview else 0)
    qwen = QwenVL(
        learner.model,
        scenes_tokenizer(),
        Preprocessing(16, PixelNormalisation(), 1024, 1 << 22),
        "scenes",
        family_of("qwen3_vl", "scenes"),
    )
    with torch.inference_mode():
        packed = learner._answers(batch, learner.see(batch))
    for clip in range(2):
        for question in range(batch.places.shape[1]):
            places = (batch.question_numbers[clip] == question).nonzero().flatten()
            begins = places[0] + int((batch.labels[clip, places] != IGNORED).nonzero()[0])
            expected = answering_logits(qwen, batch, clip, batch.ids[clip, places[0] : begins].tolist())
            torch.testing.assert_close(packed[clip, begins - 1], expected, atol=3e-4, rtol=1e-3)


@torch.inference_mode()
def test_an_overview_is_encoded_apart_from_what_is_chosen(learner: Learner) -> None:
    batch = batch_of(1, overview=6)
    pixels = batch.pixels.clone()
    pixels[:, :, batch.overview :] = 0
    tokens, other = learner.see(batch), learner.see(replace(batch, pixels=pixels))
    overview = slice(0, batch.overview)
    assert torch.equal(tokens.embeds[:, overview], other.embeds[:, overview])
    single_pass = learner.see(replace(batch, overview=0))
    assert not torch.allclose(tokens.embeds[:, overview], single_pass.embeds[:, overview])


def test_all_losses_reach_the_vision_tower_and_the_language_model(learner: Learner, batch: Batch) -> None:
    losses = learner(batch)
    assert losses.total.item() == pytest.approx(losses.answer + losses.place + losses.token, rel=1e-4)
    losses.total.backward()
    towers = (learner.model.model.visual, learner.model.model.language_model, learner.head, learner.locator)
    for tower in towers:
        assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in tower.parameters())
    learner.zero_grad()


def test_positions_are_read_from_the_last_token_before_each_answer(learner: Learner, batch: Batch) -> None:
    clips, steps = batch.ids.shape
    hidden = torch.zeros(clips, 50 + steps, 192)
    blind = learner._place_loss(batch, hidden).item()
    has_label = batch.labels != IGNORED
    last = 50 - 1 + (has_label & ~has_label.roll(1, dims=1)).nonzero()[:, 1].view(clips, -1)
    assert last.shape == batch.places.shape[:2]
    hidden[torch.arange(clips)[:, None], last] = 1.0
    assert learner._place_loss(batch, hidden).item() != pytest.approx(blind), "what stands there counts"
    assert learner._place_loss(batch, 1 - hidden).item() == pytest.approx(blind), "nothing else does"


def test_the_model_is_small_and_says_what_it_knows(learner: Learner) -> None:
    assert 4e6 < sum(parameter.numel() for parameter in learner.model.parameters()) < 6e6
    assert learner.model.config.arr_coc_levels is True
    assert learner.model.config.arr_coc_world == "drawn scenes"
