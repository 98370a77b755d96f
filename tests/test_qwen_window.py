"""Frames of a window: what they give does not depend on how they came there, and they cost what they should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sessions_apart import Logits, apart, frame_tokens, frames, sharing
from test_qwen_parity import GRID as STOCK_GRID
from test_qwen_parity import QUERY as STOCK_QUERY
from test_qwen_parity import Stock, frame_packet, token_packet
from test_qwen_session import OTHER_QUERY, QUERY, packet, said, session
from tiny_qwen import FAMILIES, tiny_qwen

from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.frame_window import FrameWindow
from arr_coc.qwen.options import AnswerOptions, Frames, WindowOptions
from arr_coc.qwen.positions import grid_regions
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import FrameStamp


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
    """Frames enter, questions come, answers are broken off, two guests take turns, frames come as a list."""
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
