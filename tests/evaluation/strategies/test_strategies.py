"""Every strategy answers, shows what its budget pays, and is charged for what it computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.evs import clip_tiles
from arr_coc.errors import NonFiniteError
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.attention import PROBED_LAYERS
from arr_coc.qwen.encoding import EncodedFrame
from arr_coc.qwen.flops import Costs
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.vision import VisualTokens
from arr_coc.types import NS_PER_S, Feedback, FrameStamp, TileGrid, TokenPacket
from arr_coc.video.picture_allocator import PictureAllocator
from evaluation.errors import ChoiceError, EvaluationError
from evaluation.strategies.arr_coc import choosing_flops, glance_by_similarity
from evaluation.strategies.base import Ask, TiledFrame, regions_of, stamps_of
from evaluation.strategies.catalogue import STRATEGIES, strategy_named
from evaluation.strategies.sampling import changes, smaller_grid
from evaluation.strategies.session import EvalPrompt
from tests.support.evaluation import ask, picture
from tests.support.models import ATTENDING, FAMILIES, tiny_qwen

TILES = 35
BUDGETED = [name for name, strategy in STRATEGIES.items() if strategy.budgeted]


@pytest.fixture(scope="module")
def qwen() -> QwenVL:
    return tiny_qwen()


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("name", STRATEGIES)
def test_it_shows_what_the_budget_pays(qwen: QwenVL, name: str, frames: int) -> None:
    strategy = strategy_named(name)
    reply = strategy.answer(qwen, ask("40%", frames, encode=strategy.encodes[0]))
    all_tokens = TILES * frames
    budget = 14 * frames if strategy.budgeted else all_tokens
    assert reply.of_tokens == all_tokens
    # the guard of arr-coc for noise spends what an even step pays; smaller pictures keep their aspect
    least = 0.7 * budget if name.startswith(("arr-coc", "smaller")) else budget
    assert least <= reply.tokens <= budget
    assert reply.grid.tiles == TILES
    if frames == 1 and name not in ("smaller", "arr-coc-glance-drop"):  # which pays for what it does not show
        assert len(reply.regions) == reply.tokens
    assert reply.ttft_ms > 0
    assert reply.flops.encode > 0


def test_a_glance_by_similarity_reads_nothing_before_the_answer(qwen: QwenVL) -> None:
    reply = strategy_named("arr-coc-glance-similarity").answer(qwen, query := ask("60%"))
    assert reply.prefilled == reply.tokens + EvalPrompt(qwen, query.views(qwen), query.text).text_tokens
    assert reply.prefilled < strategy_named("arr-coc-glance").answer(qwen, query).prefilled


def test_a_glance_by_similarity_finds_the_region_that_is_most_like_a_word(
    qwen: QwenVL, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = np.array([[1, 0, 0], [1, 0, 1], [1, 1, 0]], np.int32)
    pixels = np.zeros((3, 3, 32, 32), np.uint8)
    overview = TokenPacket(FrameStamp(0, 0, 0), TileGrid(4, 4, 128, 128), regions, np.ones(3, np.float32), pixels, 3)
    words = torch.from_numpy(qwen.embed_query("a red circle").tokens)
    rows = torch.stack([-words[0], words[1], -words[2]])[None]
    encoded = EncodedFrame(VisualTokens(rows, ()), torch.from_numpy(regions)[None], overview.grid)
    monkeypatch.setattr("evaluation.strategies.arr_coc.encode_packet", lambda *_: encoded)
    feedback = glance_by_similarity(qwen, "a red circle", overview)
    assert feedback.attention.argmax() == 1
    assert feedback.attention.max() == 1
    assert feedback.attention.min() >= 0


def stream_ask(budget: str, **changes: Any) -> Ask:
    """A question about the newest of six frames."""
    clip = ask(budget, 6)
    newest = {"frames": clip.frames[5:], "times_s": clip.times_s[5:]}
    return replace(clip, **newest, before=clip.frames[:5], before_s=clip.times_s[:5], **changes)


@pytest.mark.parametrize(
    ("name", "frames"), [("last-1", 1), ("last-4", 4), ("last-16", 6), ("last-4-evs", 4), ("last-3-vidcom2", 3)]
)
def test_the_newest_frames_are_answered_about_under_their_times(qwen: QwenVL, name: str, frames: int) -> None:
    strategy, query = strategy_named(name), stream_ask("40%")
    of = STRATEGIES[name.split("-", 2)[2] if name.count("-") == 2 else "full"]
    full_clip = ask("40%", 6)
    same = replace(full_clip, frames=full_clip.frames[-frames:], times_s=full_clip.times_s[-frames:])
    reply = strategy.answer(qwen, replace(query, encode=strategy.encodes[0]))
    expected = of.answer(qwen, replace(same, encode=of.encodes[0]))
    assert (reply.text, reply.tokens, reply.flops) == (expected.text, expected.tokens, expected.flops)
    assert reply.of_tokens == TILES * frames
    assert reply.prefilled == reply.tokens + EvalPrompt(qwen, same.views(qwen), same.text).text_tokens


@pytest.mark.parametrize("name", ["last-0", "last-", "last-4-", "last-4-memory", "last-4-last-4", "last-x", "xlast-4"])
def test_other_names_of_newest_frames_are_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ChoiceError, match=r"unknown strategy .*; there are arr-coc, .*last-N, last-N-STRATEGY"):
        strategy_named(name)


def test_four_smaller_frames_have_the_tokens_of_one(qwen: QwenVL) -> None:
    reply = strategy_named("last-4-smaller").answer(qwen, stream_ask("40%", encode="full"))
    assert 4 <= reply.tokens <= 14
    assert reply.of_tokens == TILES * 4


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_token_of_the_prompt_counts_as_prefilled(qwen: QwenVL, name: str) -> None:
    strategy, query = strategy_named(name), ask("100%")
    reply = strategy.answer(qwen, replace(query, encode=strategy.encodes[0]))
    prompt_tokens = TILES + EvalPrompt(qwen, query.views(qwen), query.text).text_tokens
    assert reply.cached_tokens == 0
    if name in ("arr-coc-again", "arr-coc-feedback"):  # whose streams were asked the same about this frame before
        assert 0 < reply.prefilled < prompt_tokens
    else:
        assert reply.prefilled == prompt_tokens or (
            reply.prefilled > prompt_tokens and name.startswith("arr-coc-glance")
        )


@pytest.mark.parametrize("name", BUDGETED)
def test_with_a_budget_of_all_tokens_it_answers_as_the_full_model(qwen: QwenVL, name: str) -> None:
    strategy = strategy_named(name)
    for frames in (1, 2):
        full = STRATEGIES["full"].answer(qwen, ask("100%", frames, encode="full"))
        reply = strategy.answer(qwen, ask("100%", frames, encode=strategy.encodes[0]))
        assert reply.text == full.text
        assert reply.tokens == full.tokens
        same = (reply.flops.encode, reply.flops.prefill, reply.flops.decode)
        assert same == (full.flops.encode, full.flops.prefill, full.flops.decode)


@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize("family", FAMILIES[1:])
def test_other_families_are_served_too(family: str, name: str) -> None:
    strategy = strategy_named(name)
    if family not in ATTENDING and name in ("fastv", "pyramiddrop", "sparsevlm", "dart"):
        with pytest.raises(EvaluationError, match=r"recurrent layers, between which no tokens can be dropped; take"):
            strategy.answer(tiny_qwen(family), ask("25%", 2, encode=strategy.encodes[0]))
        return
    reply = strategy.answer(tiny_qwen(family), ask("25%", 2, encode=strategy.encodes[0]))
    assert 0 < reply.tokens <= 0.27 * reply.of_tokens


def test_strategies_after_the_encoder_pay_all_of_it(qwen: QwenVL) -> None:
    costs = Costs(qwen)
    text = EvalPrompt(qwen, ask().views(qwen), "What is it?").text_tokens
    sparse = STRATEGIES["grid"].answer(qwen, ask("40%"))
    assert sparse.flops.encode == costs.encode(14)
    assert sparse.flops.prefill == costs.prefill([text + 14] * 3)
    late = STRATEGIES["grid"].answer(qwen, ask("40%", encode="prune"))
    assert late.flops.encode == costs.encode(TILES)
    assert late.flops.prefill == sparse.flops.prefill
    fastv = STRATEGIES["fastv"].answer(qwen, ask("40%", encode="prune"))
    assert fastv.flops.encode == costs.encode(TILES)
    assert fastv.flops.prefill == costs.prefill([text + TILES, text + TILES, text + 14])
    assert fastv.flops.choose == costs.attention_row(text + TILES)
    divprune = STRATEGIES["divprune"].answer(qwen, ask("40%", encode="prune"))
    assert divprune.flops.encode == costs.encode(TILES)
    assert divprune.flops.prefill == sparse.flops.prefill
    assert divprune.flops.choose == 2 * TILES * TILES * 64
    cdpruner = STRATEGIES["cdpruner"].answer(qwen, ask("40%", encode="prune"))
    query_tokens = len(qwen.plain_token_ids("What is it?"))
    assert cdpruner.flops.choose == 2 * 64 * TILES * (TILES + query_tokens) + TILES * 14 * 13
    assert cdpruner.flops.prefill == sparse.flops.prefill
    dart = STRATEGIES["dart"].answer(qwen, ask("40%", encode="prune"))
    assert dart.flops.choose == 2 * 64 * TILES * (4 + min(4, query_tokens))
    assert dart.flops.prefill == fastv.flops.prefill
    vidcom2 = STRATEGIES["vidcom2"].answer(qwen, ask("40%", encode="prune"))
    assert vidcom2.flops.choose == 2 * 2 * TILES * 32
    assert vidcom2.flops.prefill == sparse.flops.prefill
    arr_coc = STRATEGIES["arr-coc"].answer(qwen, ask("40%"))
    assert arr_coc.flops.choose == choosing_flops(None, TILES) > 0


def test_arr_coc_answers_as_generate_does_for_a_user(qwen: QwenVL) -> None:
    query = ask("40%", 2)
    generation = ARRCOCQwen(qwen).generate(
        list(query.frames), query.text, 6, budget=14, times_s=query.times_s, glance=False
    )
    reply = STRATEGIES["arr-coc"].answer(qwen, query)
    assert reply.text == generation.text
    assert np.array_equal(reply.regions, generation.regions)


def test_an_allocation_that_fails_ends_the_evaluation(qwen: QwenVL, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise NonFiniteError("relevance holds NaN or Inf")

    monkeypatch.setattr("arr_coc.video.picture_allocator.packet_from", fail)
    with pytest.raises(EvaluationError, match="the log says why"):
        STRATEGIES["arr-coc"].answer(qwen, ask("40%"))


def test_random_tiles_depend_on_the_seed_alone(qwen: QwenVL) -> None:
    strategy = STRATEGIES["random"]
    first, repeat, other = (strategy.answer(qwen, ask("40%", seed=seed)).regions for seed in (1, 1, 2))
    assert np.array_equal(first, repeat)
    assert not np.array_equal(first, other)


def views(qwen: QwenVL, frames: list[np.ndarray]) -> list[TiledFrame]:
    return [TiledFrame.fit(qwen.preprocessing, frame, FrameStamp(index, 0, 0)) for index, frame in enumerate(frames)]


def test_evs_looks_at_the_pixels_of_each_pair_of_frames(qwen: QwenVL) -> None:
    first = picture()
    second, third = first.copy(), first.copy()
    second[32:64, 64:96] = 255 - second[32:64, 64:96]
    third[0:32, 0:32] = 0
    clip = views(qwen, [first, second, third])
    assert [np.argwhere(change).tolist() for change in changes(clip)] == [[[1, 2]], [[0, 0], [1, 2]]]


def test_evs_of_a_clip_is_what_the_live_allocator_chooses(qwen: QwenVL) -> None:
    """With less than one frame's budget, frame by frame; tiles that did not change are the same in both."""
    first = picture()
    second, third = first.copy(), first.copy()
    second[32:64, 64:96] = 255 - second[32:64, 64:96]
    third[0:32, 0:32] = 0
    query = replace(ask("10%"), frames=(first, second, third), times_s=(0.0, 1.0, 2.0))
    live = PictureAllocator(qwen, query.text, AllocatorOptions("evs", 4))
    packets = [live.allocate(frame, stamp) for frame, stamp in zip(query.frames, stamps_of(query.times_s), strict=True)]
    masks = clip_tiles(changes(query.views(qwen)), (5, 7), 4)
    assert [packet.regions.tolist() for packet in packets] == [regions_of(tiles).tolist() for tiles in masks]
    reply = STRATEGIES["evs"].answer(qwen, query)
    assert reply.regions.tolist() == packets[-1].regions.tolist()


def test_querystream_before_the_encoder_is_what_the_live_allocator_chooses(qwen: QwenVL) -> None:
    first = picture()
    second = first.copy()
    second[32:64, 64:96] = 255 - second[32:64, 64:96]
    query = replace(ask("10%"), frames=(second,), times_s=(1.0,), before=(first,), before_s=(0.0,))
    live = PictureAllocator(qwen, query.text, AllocatorOptions("querystream", 4, explore=0.0))
    packets = [live.allocate(frame, stamp) for frame, stamp in zip((first, second), stamps_of((0.0, 1.0)), strict=True)]
    reply = STRATEGIES["arr-coc-querystream"].answer(qwen, query)
    assert reply.regions.tolist() == packets[-1].regions.tolist()
    assert [0, 1, 2] in reply.regions.tolist()
    assert packets[0].regions.tolist() != packets[1].regions.tolist()


@pytest.mark.parametrize(
    ("shape", "tokens", "expected"), [((8, 8), 16, (4, 4)), ((5, 7), 14, (3, 4)), ((1, 9), 2, (1, 2))]
)
def test_a_smaller_picture_keeps_its_aspect_and_the_budget(
    shape: tuple[int, int], tokens: int, expected: tuple[int, int]
) -> None:
    assert smaller_grid(shape, tokens) == expected
    assert smaller_grid(shape, 10**6) == shape
    assert smaller_grid(shape, 1) == (1, 1)


def test_a_stream_remembers_what_it_saw_before(qwen: QwenVL) -> None:
    stream, single = STRATEGIES["arr-coc-stream"], STRATEGIES["arr-coc"]
    dark, bright = (np.full((224, 320, 3), 40, np.uint8) for _ in range(2))
    bright[96:160, 32:96] = (250, 220, 30)
    dark[32:64, 256:288] = (60, 90, 60)
    query = replace(ask("20%"), frames=(dark,), times_s=(1.0,))
    assert np.array_equal(stream.answer(qwen, query).regions, single.answer(qwen, query).regions)
    after = replace(query, before=(bright, bright), before_s=(0.92, 0.96))
    reply = stream.answer(qwen, after)
    assert not np.array_equal(reply.regions, single.answer(qwen, after).regions)
    assert reply.of_tokens == 70, "only what is asked about is counted"


def test_an_unchanged_picture_costs_a_memory_no_tokens(qwen: QwenVL) -> None:
    stream = strategy_named("memory").stream(qwen)
    first = stream(ask("20%"))
    assert (first.tokens, first.cached_tokens) == (7, 0)
    second = stream(replace(ask("20%"), times_s=(5.0,)))
    assert second.tokens == second.cached_tokens
    assert second.prefilled < first.prefilled
    assert second.flops.prefill < first.flops.prefill


def still(frames: int) -> tuple[np.ndarray, ...]:
    """The same picture over and over, but for one tile of the last one."""
    last = picture()
    last[64:96, 128:160] = 255 - last[64:96, 128:160]
    return (*[picture()] * (frames - 1), last)


@pytest.mark.parametrize("name", ["grid", "arr-coc", "arr-coc-stream"])
def test_incremental_pays_for_what_changed(qwen: QwenVL, name: str) -> None:
    costs = Costs(qwen)
    query = ask("100%")
    sparse, incremental = (
        STRATEGIES[name].answer(qwen, replace(query, encode=way)) for way in ("sparse", "incremental")
    )
    assert incremental.flops == sparse.flops
    assert incremental.text == sparse.text
    clip = replace(query, frames=still(3), times_s=(0.0, 0.5, 1.0), encode="incremental")
    reply = STRATEGIES[name].answer(qwen, clip)
    refreshed = 4  # a tenth of 35, rounded up
    unchanged, changed = costs.encode(refreshed, TILES), costs.encode(refreshed + 1, TILES)
    assert reply.flops.encode == costs.encode(TILES) + unchanged + changed
    assert reply.flops.prefill == STRATEGIES[name].answer(qwen, replace(clip, encode="sparse")).flops.prefill


def test_a_kept_key_is_attended_to_and_not_paid_again(qwen: QwenVL) -> None:
    costs = Costs(qwen)
    assert costs.encode(35, 35) == costs.encode(35)
    attended = [costs.encode(5, among) for among in (5, 15, 25)]
    assert attended[0] == costs.encode(5)
    assert attended[1] - attended[0] == attended[2] - attended[1] > 0
    assert costs.encode(5, 35) < costs.encode(35) / 5


def taught(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FrameStamp, Feedback | None]]:
    """The feedback that allocators get after each answer from here on, and of which frame it was the newest."""
    reported: list[tuple[FrameStamp, Feedback | None]] = []
    allocate, on_answer = PictureAllocator.allocate, PictureAllocator.on_answer

    def note_frame(self: PictureAllocator, frame: Any, stamp: FrameStamp) -> Any:
        reported.append((stamp, None))
        return allocate(self, frame, stamp)

    def note(self: PictureAllocator, feedback: Feedback | None) -> None:
        reported[-1] = (reported[-1][0], feedback)
        on_answer(self, feedback)

    monkeypatch.setattr(PictureAllocator, "allocate", note_frame)
    monkeypatch.setattr(PictureAllocator, "on_answer", note)
    return reported


def test_feedback_is_the_only_difference_of_the_pair(qwen: QwenVL, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = taught(monkeypatch)
    clip = replace(ask("20%", 2), before=(picture(1),), before_s=(-0.5,))
    stamps = {}
    for name in ("arr-coc-again", "arr-coc-feedback"):
        reported.clear()
        reply = STRATEGIES[name].answer(qwen, clip)
        stamps[name] = [stamp for stamp, _ in reported]
        assert [stamp.media_ns / NS_PER_S for stamp in stamps[name]] == [-4.5, -2.5, -0.5, 0.0, 0.5]
        if name == "arr-coc-again":
            assert all(feedback is None for _, feedback in reported)
        else:
            assert [feedback.stamp.frame_index for _, feedback in reported if feedback] == [0, 1, 2, 3, 4]
        assert reply.tokens == 14
    assert stamps["arr-coc-again"] == stamps["arr-coc-feedback"]


def test_attended_tiles_draw_tokens_at_the_next_answer(qwen: QwenVL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve squares, of which the budget does not pay all: one that was not shown is, once answers looked at it."""
    squares = np.full((224, 320, 3), 40, np.uint8)
    places = [(row, col) for row in (1, 3, 5) for col in (1, 3, 5, 8)]
    for row, col in places:
        squares[row * 32 + 8 : row * 32 + 24, col * 32 + 8 : col * 32 + 24] = (200, 60, 60)
    query = replace(ask("10%"), frames=(squares,))
    visible_tiles = {(row, col) for _, row, col in STRATEGIES["arr-coc-again"].answer(qwen, query).regions.tolist()}
    target = next(place for place in places if place not in visible_tiles)

    def only_there(prompt: Any, *rest: Any) -> Feedback:
        regions = np.array([(0, row, col) for row in range(7) for col in range(10)], np.int32)
        attention = (regions[:, 1:] == target).all(axis=1).astype(np.float32)
        return Feedback(prompt.stamps[-1], regions, attention, np.zeros(70, np.float32))

    monkeypatch.setattr("arr_coc.qwen.slot.feedback_from", only_there)
    assert [0, *target] in STRATEGIES["arr-coc-feedback"].answer(qwen, query).regions.tolist()


@pytest.mark.parametrize("encode", STRATEGIES["arr-coc-feedback"].encodes)
def test_answers_teach_whatever_the_encoder_sees(qwen: QwenVL, encode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = taught(monkeypatch)
    reply = STRATEGIES["arr-coc-feedback"].answer(qwen, ask("20%", 2, encode=encode))
    assert [len(feedback.regions) for _, feedback in reported if feedback] == [35 if encode == "weighted" else 7] * 4
    assert reply.tokens == (70 if encode == "weighted" else 14)


def test_looking_is_paid_for(qwen: QwenVL) -> None:
    replies = [STRATEGIES[name].answer(qwen, ask("100%")) for name in ("arr-coc-again", "arr-coc-feedback")]
    prompt_tokens = EvalPrompt(qwen, ask().views(qwen), "What is it?").text_tokens + TILES
    looks = (replies[1].flops.choose - replies[0].flops.choose) / Costs(qwen).attention_row(prompt_tokens)
    assert looks == PROBED_LAYERS * 7, "for six tokens of text, of which the last may be followed by the end"
    assert replies[0].ttft_ms > 0
