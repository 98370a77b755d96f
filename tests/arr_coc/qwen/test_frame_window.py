"""Which frames a window keeps, and which of them a question picks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.errors import OptionError
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.decode import PrefixCache, PromptPart, prefill
from arr_coc.qwen.encoding import Packet, encode_packet
from arr_coc.qwen.frame_window import (
    CachedFrame,
    FrameDelimiters,
    FrameWindow,
    Ids,
    insert_frames,
    prefill_frame,
    suitability,
)
from arr_coc.qwen.options import AnswerOptions, Frames, WindowOptions
from arr_coc.qwen.preprocess import grid_regions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import Encode, FrameStamp, TileGrid
from tests.arr_coc.qwen.test_parity import GRID as STOCK_GRID
from tests.arr_coc.qwen.test_parity import QUERY as STOCK_QUERY
from tests.arr_coc.qwen.test_parity import Stock, frame_packet, token_packet
from tests.arr_coc.qwen.test_session import OTHER_QUERY, QUERY, packet, said, session, whole
from tests.support.models import FAMILIES, tiny_qwen
from tests.support.sessions import Logits, apart, frame_tokens, frames, sharing

CAT, DOG = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])


def frame(
    index: int,
    embeds: Sequence[torch.Tensor] = (CAT,),
    relevance: Sequence[float] = (1.0,),
    epoch: int = 1,
    head: tuple[int, ...] = (7,),
) -> CachedFrame:
    rows = torch.zeros(1, 1, len(embeds) + 2, 4)
    return CachedFrame(
        stamp=FrameStamp(index, 0, 0, epoch),
        wrapping=FrameDelimiters(head, (8,), (9,)),
        packet=None,
        keys=(rows, rows),
        values=(rows, rows),
        positions=torch.zeros(3, len(embeds) + 2),
        extent=3,
        visual=slice(1, 1 + len(embeds)),
        embeds=torch.stack(list(embeds)),
        regions=torch.zeros(len(embeds), 3, dtype=torch.long),
        relevance=torch.tensor(list(relevance)),
        grid=TileGrid.of(96, 128),
    )


def window(*entered: CachedFrame, **options: Any) -> FrameWindow:
    made = FrameWindow(WindowOptions(**options))
    for one in entered:
        made.enter(one)
    return made


def picked(made: FrameWindow, query: torch.Tensor = CAT) -> list[int]:
    return [one.stamp.frame_index for one in made.pick(query)]


def test_the_newest_frames_stay() -> None:
    made = window(*(frame(index) for index in range(5)), frames=3)
    assert picked(made) == [one.stamp.frame_index for one in made.frames] == [2, 3, 4]
    made.clear()
    assert (made.frames, made.newest, made.bytes, picked(made)) == ((), None, 0, [])


def test_the_question_picks_among_those_that_are_kept() -> None:
    shown = [frame(0, [DOG]), frame(1), frame(2, [DOG]), frame(3), frame(4, [DOG]), frame(5)]
    made = window(*shown, frames=3, kept=5)
    assert picked(made, CAT) == [1, 3, 5]
    assert picked(made, DOG) == [2, 4, 5]
    assert picked(made, CAT) == [1, 3, 5]  # what was asked in between leaves no trace


def test_of_frames_that_suit_equally_the_newer_ones_are_taken() -> None:
    assert picked(window(*(frame(index) for index in range(5)), frames=3, kept=5)) == [2, 3, 4]


def test_relevance_counts_as_similarity_does() -> None:
    dull, lively = frame(0, relevance=[0.1]), frame(1, relevance=[0.9])
    assert suitability(lively, CAT) == pytest.approx(0.9)
    assert suitability(lively, -CAT) == pytest.approx(0.0)
    assert picked(window(lively, dull, frame(2), frames=2, kept=3)) == [1, 2]
    both = frame(0, [CAT, DOG], relevance=[0.5, 1.0])
    assert suitability(both, CAT) == pytest.approx((0.5 * 1 + 1.0 * 0.5) / 2)


def test_no_more_are_shown_than_there_is_room_for() -> None:
    """A frame whose allocation failed may take as much as all others together."""
    large = frame(1, [CAT] * 7)
    shown = window(frame(0), large, frame(2), frame(3), frames=3)
    assert (large.steps, frame(0).steps) == (9, 3)
    assert [[one.stamp.frame_index for one in shown.pick(CAT, room)] for room in (15, 14, 6, 5, 1)] == [
        [1, 2, 3],
        [2, 3],
        [2, 3],
        [3],
        [3],
    ]


def test_the_same_frame_is_there_once() -> None:
    made = window(frame(0), frame(1), frame(1, [DOG]), frames=3)
    assert [one.stamp.frame_index for one in made.frames] == [0, 1]
    assert torch.equal(made.frames[1].embeds, DOG[None])


def test_a_new_epoch_empties_it_unless_frames_are_to_be_kept() -> None:
    before_and_after = frame(0), frame(1), frame(1, epoch=2)
    assert [one.stamp.epoch for one in window(*before_and_after, frames=3).frames] == [2]
    assert [one.stamp.epoch for one in window(*before_and_after, frames=3, on_cut="keep").frames] == [1, 1, 2]


def test_frames_read_after_another_prompt_leave_even_then() -> None:
    made = window(frame(0), frame(1, head=(5, 5)), frames=3, on_cut="keep")
    assert [one.stamp.frame_index for one in made.frames] == [1]


def test_only_a_window_of_one_frame_shows_it_without_its_time() -> None:
    assert not WindowOptions(frames=1, kept=4).timed
    assert WindowOptions(frames=2).timed


def test_options_out_of_range() -> None:
    with pytest.raises(OptionError, match="at least 1 frame, got 0"):
        WindowOptions(frames=0)
    with pytest.raises(OptionError, match="shows 4 frames must keep as many or more, got 3"):
        WindowOptions(frames=4, kept=3)
    with pytest.raises(OptionError, match="on_cut must be empty or keep, got 'drop'"):
        WindowOptions(on_cut="drop")  # type: ignore[arg-type]


def begun(qwen: QwenVL) -> tuple[PrefixCache[Ids | CachedFrame], FrameDelimiters]:
    """A cache that begins with a prompt's beginning."""
    head = tuple(qwen.token_ids("You are a helpful assistant."))
    part, cache = PromptPart(qwen, 0, 0), PrefixCache[Ids | CachedFrame]()
    part.text(head)
    prefill(qwen, part, cache.kv)
    cache.mark(head, part.tokens, part.position)
    return cache, FrameDelimiters(head, (*qwen.token_ids("<3.2 seconds>"), 3), (4,))


def read(qwen: QwenVL, shown: Packet, encode: Encode = "sparse") -> CachedFrame:
    cache, wrapping = begun(qwen)
    return prefill_frame(qwen, cache, shown, encode_packet(qwen, shown, encode), wrapping)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_the_first_slot_it_lies_as_one_run_would_leave_it(family: str) -> None:
    qwen = tiny_qwen(family)
    cache, wrapping = begun(qwen)
    frame = encode_packet(qwen, packet(), "sparse")
    kept = prefill_frame(qwen, cache, packet(), frame, wrapping)
    insert_frames(qwen, cache, [kept])

    part, stock = PromptPart(qwen, 0, 0), PrefixCache[Ids]()
    part.text([*wrapping.head, *wrapping.opening])
    visual = part.frame(frame)
    part.text(wrapping.closing)
    prefill(qwen, part, stock.kv)
    for own, expected in zip(cache.kv.layers, stock.kv.layers, strict=True):
        torch.testing.assert_close(own.keys, expected.keys, atol=1e-5, rtol=0)
        torch.testing.assert_close(own.values, expected.values, atol=1e-5, rtol=0)
    begins = cache.marks[0].tokens
    assert (cache.marks[1].tokens, cache.position) == (part.tokens, part.position)
    assert slice(begins + kept.visual.start, begins + kept.visual.stop) == visual
    assert (kept.tokens, kept.visual_tokens) == (part.tokens - begins, 6)


def test_laying_nothing_changes_nothing() -> None:
    qwen = tiny_qwen()
    cache, _ = begun(qwen)
    tokens = len(cache)
    insert_frames(qwen, cache, [])
    assert (len(cache), len(cache.marks)) == (tokens, 1)


def test_it_keeps_nothing_of_the_prompts_beginning() -> None:
    kept = read(tiny_qwen(), packet())
    assert {rows.shape[-2] for rows in (*kept.keys, *kept.values)} == {kept.tokens}
    storage = sum(rows.untyped_storage().nbytes() for rows in (*kept.keys, *kept.values, kept.embeds))
    assert kept.bytes == storage + packet().pixels.nbytes


def test_it_takes_of_the_context_whichever_is_more() -> None:
    kept = read(tiny_qwen(), packet(tokens=1))
    assert kept.extent == kept.tokens - 1 + 4  # one token of a grid four tiles wide
    assert kept.steps == kept.extent > kept.tokens


def test_the_same_packet_in_the_same_wrapping_reads_the_same() -> None:
    kept = read(tiny_qwen(), packet())
    assert kept.reads(packet(), kept.wrapping)
    assert not kept.reads(packet(1), kept.wrapping)
    assert not kept.reads(packet(), replace(kept.wrapping, opening=(3,)))


def test_a_whole_frame_may_have_been_overwritten_since() -> None:
    kept = read(tiny_qwen(), whole(), "prune")
    assert kept.packet is None
    assert not kept.reads(whole(), kept.wrapping)


def test_relevance_of_a_coarse_region_is_the_mean_over_its_tiles() -> None:
    regions = np.array([[0, 2, 3], [1, 0, 1], [2, 0, 0]], np.int32)  # the last reaches over the grid's edge
    relevance = np.arange(12, dtype=np.float32).reshape(3, 4) / 12
    kept = read(tiny_qwen(), replace(whole(), regions=regions, relevance=relevance), "prune")
    expected = [11, (2 + 3 + 6 + 7) / 4, 5.5]
    torch.testing.assert_close(kept.relevance * 12, torch.tensor(expected))
    chosen = replace(packet(), relevance=np.linspace(0, 1, 6, dtype=np.float32))
    assert read(tiny_qwen(), chosen).relevance.tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> Logits:
    return Logits(monkeypatch)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_order_of_entering_and_leaving_gives_the_same_logits(family: str, logits: Logits) -> None:
    random = np.random.default_rng(0)
    speaking = apart(family, max_tokens=1)
    pool = frames(*range(6))
    for _ in range(8):
        shown = [pool[index] for index in random.permutation(6)[: random.integers(1, 5)]]
        query = str(random.choice([QUERY, OTHER_QUERY]))
        got = logits.of(speaking, shown, query)
        torch.testing.assert_close(got, logits.of(sharing(speaking), shown, query), atol=1e-5, rtol=0)


def test_order_matters_all_the_same(logits: Logits) -> None:
    speaking = apart()
    one, two = frames(1, 2)
    assert not torch.allclose(logits.of(speaking, [one, two], QUERY), logits.of(speaking, [two, one], QUERY), atol=1e-3)


def test_moving_a_frame_often_adds_no_error_in_bfloat16(logits: Logits) -> None:
    """Rotated from rotated keys, these would drift: bfloat16 keeps eight bits."""
    speaking = apart()
    speaking.qwen.model.to(torch.bfloat16)
    pool = frames(*range(5))
    for turn in range(8):
        logits.of(speaking, [pool[(turn + step) % 5] for step in range(3)], QUERY)
    shown = [pool[index] for index in (4, 1, 0)]
    assert torch.equal(logits.of(speaking, shown, QUERY), logits.of(sharing(speaking), shown, QUERY))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_frame_equals_recomputing(family: str, logits: Logits) -> None:
    """Also once others have come and gone."""
    speaking = apart(family)
    window = FrameWindow(WindowOptions(frames=1))
    for seed in range(3):
        got = logits.of(speaking, packet(seed), QUERY, window=window)
        stock = logits.of(AnswerSession(speaking.qwen, AnswerOptions()), packet(seed), QUERY)
        torch.testing.assert_close(got, stock, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("encode", ["full", "sparse"])
@torch.no_grad()
def test_one_frame_with_all_tokens_equals_the_stock_model(family: str, encode: Any, logits: Logits) -> None:
    qwen = tiny_qwen(family)
    stock = Stock(qwen)
    tiles = torch.arange(STOCK_GRID.tiles)
    shown = token_packet(qwen, stock, tiles) if encode == "sparse" else frame_packet(stock, grid_regions(STOCK_GRID))
    speaking = AnswerSession(qwen, AnswerOptions(encode, frames="window"))
    window = FrameWindow(WindowOptions(frames=1))
    torch.testing.assert_close(
        logits.of(speaking, shown, STOCK_QUERY, window=window), stock.logits(), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_stands_where_the_stock_layout_has_it(family: str, logits: Logits) -> None:
    """The first layer sees no other token: its rotated keys and its values are those of one causal run."""
    caches = []
    for layout in ("causal", "window"):
        speaking = session(family, max_tokens=1, frames=layout)
        if layout == "window":
            logits.of(speaking, frames(3, 0, 1, 2), QUERY)
        logits.of(speaking, frames(0, 1, 2), QUERY)
        caches.append(speaking.prompts.cache)
    causal, window = (cache.kv.layers[0] for cache in caches)
    torch.testing.assert_close(window.keys, causal.keys, atol=1e-5, rtol=0)
    torch.testing.assert_close(window.values, causal.values, atol=1e-5, rtol=0)
    assert [mark.position for mark in caches[0].marks] == [mark.position for mark in caches[1].marks]


@pytest.mark.parametrize("family", FAMILIES)
def test_feedback_is_about_the_same_tokens(family: str) -> None:
    """Of one frame it is what the stock layout gives; of several, each lies at the same place of the cache."""
    speaking, stock = apart(family), session(family)
    window = FrameWindow(WindowOptions(frames=1))
    said(speaking, packet(0), QUERY, None, window)
    said(speaking, packet(1), QUERY, None, window)
    said(stock, packet(1), QUERY)
    got, expected = speaking.last.feedback, stock.last.feedback
    np.testing.assert_allclose(got.attention, expected.attention, atol=1e-4)
    np.testing.assert_allclose(got.similarity, expected.similarity, atol=1e-5)
    prompts = [asked.prompts.make(frames(0, 1, 2), QUERY, None, lambda: None) for asked in (stock, speaking)]
    assert prompts[0].places == prompts[1].places


def test_a_frame_sees_the_prompts_beginning_and_itself_only(logits: Logits) -> None:
    """Its keys and values are those that it has alone, whatever stands before it."""
    speaking = apart()
    shown = frames(0, 1, 2)
    logits.of(speaking, shown, QUERY)
    beside = speaking.prompts.listed[2]
    alone_session = sharing(speaking)
    logits.of(alone_session, [shown[2], shown[0]], QUERY)
    alone = alone_session.prompts.listed[0]
    for layer in range(3):
        torch.testing.assert_close(beside.keys[layer], alone.keys[layer], atol=1e-6, rtol=0)
        torch.testing.assert_close(beside.values[layer], alone.values[layer], atol=1e-6, rtol=0)


def test_only_new_frames_and_the_question_are_prefilled() -> None:
    speaking = apart()
    head = len(speaking.prompts.ids.head)
    asked, asked_else = len(speaking.prompts.question(QUERY)), len(speaking.prompts.question(OTHER_QUERY))
    sizes = [frame_tokens(speaking, shown) for shown in frames(0, 1, 2, 3)]

    def prefilled(query: str, *seeds: int) -> int:
        said(speaking, frames(*seeds), query)
        return speaking.last.prefilled_tokens

    assert prefilled(QUERY, 0, 1, 2) == head + sum(sizes[:3]) + asked
    assert prefilled(OTHER_QUERY, 0, 1, 2) == asked_else
    assert prefilled(QUERY, 1, 2, 3) == sizes[3] + asked  # the first one left, and all slots moved
    assert prefilled(QUERY, 3, 1) == asked
    assert prefilled(QUERY, 3, 2) == sizes[2] + asked  # 2 had left the list


def test_moving_costs_no_run_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    speaking = apart(max_tokens=1)
    said(speaking, frames(0, 1, 2), QUERY)
    runs: list[int] = []
    language_model = speaking.qwen.language_model
    hook = language_model.register_forward_hook(
        lambda module, args, kwargs, output: runs.append(kwargs["inputs_embeds"].shape[1]), with_kwargs=True
    )
    said(speaking, frames(2, 1), QUERY)
    hook.remove()
    assert runs == [len(speaking.prompts.question(QUERY))]


def test_a_rolling_window_shows_the_last_frames(logits: Logits) -> None:
    speaking = apart()
    window = FrameWindow(WindowOptions(frames=3))
    for shown in frames(0, 1, 2, 3, 4):
        got = logits.of(speaking, shown, QUERY, window=window)
    assert [stamp.frame_index for stamp in speaking.last.shown] == [2, 3, 4]
    torch.testing.assert_close(got, logits.of(sharing(speaking), frames(2, 3, 4), QUERY), atol=1e-5, rtol=0)
    assert speaking.last.tokens_used == 6 + 4 + 5
    assert speaking.last.feedback.stamp.frame_index == 4
    assert len(speaking.last.feedback.attention) == 5


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happened_before_leaves_no_trace(seed: int, logits: Logits) -> None:
    """Frames enter, questions come, answers are broken off, two clients take turns, frames come as a list."""
    random = np.random.default_rng(seed)
    speaking = apart()
    windows = [FrameWindow(WindowOptions(frames=2, kept=3)) for _ in range(2)]
    entered: list[list[int]] = [[], []]
    for step in range(12):
        which, query = int(random.integers(2)), str(random.choice([QUERY, OTHER_QUERY]))
        event = random.choice(["enter", "ask", "break off", "list", "clear"], p=[0.4, 0.2, 0.2, 0.1, 0.1])
        if event == "clear":
            windows[which].clear()
            entered[which].clear()
        elif event == "list":
            said(speaking, frames(step, step + 1), query)
        elif event != "ask" or entered[which]:
            entered[which] += [] if event == "ask" else [step]
            answer = speaking.answer([] if event == "ask" else frames(step), query, None, windows[which])
            next(iter(answer), None)
            if event != "break off":
                list(answer)
    for window, steps in zip(windows, entered, strict=True):
        got = logits.of(speaking, frames(20), QUERY, window=window)
        fresh, alone = FrameWindow(WindowOptions(frames=2, kept=3)), sharing(speaking)
        for step in steps[-2:]:
            said(alone, frames(step), QUERY, None, fresh)
        torch.testing.assert_close(got, logits.of(alone, frames(20), QUERY, window=fresh), atol=1e-5, rtol=0)


def test_a_window_that_is_not_full_yet_is_read_as_it_will_be(logits: Logits) -> None:
    """Its only frame has its time already, so that it stays as it is when others come."""
    speaking = apart()
    window = FrameWindow(WindowOptions(frames=2))
    said(speaking, packet(0), QUERY, None, window)
    said(speaking, packet(1, media_s=1.0), QUERY, None, window)
    assert speaking.last.prefilled_tokens == frame_tokens(speaking, packet(1)) + len(speaking.prompts.question(QUERY))


def test_another_question_about_the_window_costs_its_own_tokens() -> None:
    speaking = apart()
    window = FrameWindow(WindowOptions(frames=2))
    for shown in frames(0, 1, 2):
        said(speaking, shown, QUERY, None, window)
    text = said(speaking, [], OTHER_QUERY, None, window)
    assert speaking.last.prefilled_tokens == len(speaking.prompts.question(OTHER_QUERY))
    assert text == said(sharing(speaking), frames(1, 2), OTHER_QUERY)
    said(speaking, frames(2), QUERY, None, window)  # the newest frame comes once more
    assert speaking.last.prefilled_tokens == len(speaking.prompts.question(QUERY))
    assert len(window.frames) == 2


def test_each_question_picks_its_own_frames_from_those_that_are_kept(logits: Logits) -> None:
    speaking = apart(max_tokens=1)
    window = FrameWindow(WindowOptions(frames=3, kept=8))
    for shown in frames(*range(8)):
        said(speaking, shown, QUERY, None, window)
    picks = {}
    for query in (QUERY, OTHER_QUERY, "two green squares", "The cat", QUERY):
        got = logits.of(speaking, [], query, window=window)
        seeds = [stamp.frame_index for stamp in speaking.last.shown]
        assert seeds == [frame.stamp.frame_index for frame in window.pick(speaking.prompts.pooled(query))]
        assert picks.setdefault(query, seeds) == seeds
        torch.testing.assert_close(got, logits.of(sharing(speaking), frames(*seeds), query), atol=1e-5, rtol=0)
    assert len({tuple(seeds) for seeds in picks.values()}) > 1


def test_the_same_frame_shown_otherwise_replaces_itself() -> None:
    """Its tokens were chosen anew, for another question say."""
    speaking = apart()
    window = FrameWindow(WindowOptions(frames=3))
    said(speaking, packet(0, media_s=0.0), QUERY, None, window)
    said(speaking, packet(1, media_s=1.0, tokens=6), QUERY, None, window)
    said(speaking, packet(1, media_s=1.0, tokens=4), QUERY, None, window)
    assert [len(frame.regions) for frame in window.frames] == [6, 4]


def test_the_same_picture_a_moment_later_is_another_frame() -> None:
    """Also where its time reads the same."""
    speaking = apart()
    window = FrameWindow(WindowOptions(frames=2))
    said(speaking, packet(0, media_s=1.0), QUERY, None, window)
    later = FrameStamp(9, 1_010_000_000, 0, epoch=1)
    said(speaking, replace(packet(0), stamp=later), QUERY, None, window)
    assert speaking.last.feedback.stamp == later
    assert len(window.frames) == 2


def test_a_question_changed_in_mid_answer_loses_nothing() -> None:
    speaking = apart(max_tokens=50)
    window = FrameWindow(WindowOptions(frames=2))
    said(speaking, frames(0), QUERY, None, window)
    answer = speaking.answer(frames(1), QUERY, None, window)
    first = next(iter(answer))
    answer.close()  # type: ignore[attr-defined]
    assert speaking.last.text == first
    assert said(speaking, [], OTHER_QUERY, None, window) == said(sharing(speaking), frames(0, 1), OTHER_QUERY)
    assert speaking.last.shown == tuple(shown.stamp for shown in frames(0, 1))


def test_causal_and_apart_share_one_session() -> None:
    speaking = session()
    window = FrameWindow(WindowOptions(frames=2))
    for _ in range(2):
        assert said(speaking, frames(0, 1), QUERY) == said(session(), frames(0, 1), QUERY)
        window.clear()
        said(speaking, frames(0), QUERY, None, window)
        assert said(speaking, frames(1), QUERY, None, window) == said(apart(), frames(0, 1), QUERY)


def test_the_library_reads_frames_apart_when_asked_to() -> None:
    """A frame that comes again in other company is not read again."""
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 256, (96, 128, 3), dtype=np.uint8) for _ in range(3)]
    model = ARRCOCQwen(tiny_qwen())

    def generate(*shown: int, frames: Frames = "window") -> str:
        times_s = [float(index) for index in shown]
        return model.generate(
            [pictures[index] for index in shown], QUERY, 8, budget=12, times_s=times_s, frames=frames
        ).text

    together = generate(0, 1, 2)
    assert generate(1, 2) != together
    assert model._session.last.prefilled_tokens == len(model._session.prompts.question(QUERY))
    assert generate(0, 1, 2) == together
    assert generate(0, 1, 2, frames="causal") != together
