"""What a window forgets, what it refuses, and what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from arr_coc.errors import ContextLengthError, NonFiniteError, OptionError
from arr_coc.qwen.decode import ROOM_TOKENS
from arr_coc.qwen.frame_window import FrameWindow
from arr_coc.qwen.options import AnswerOptions, WindowOptions
from tests.arr_coc.qwen.test_session import QUERY, packet, said, whole
from tests.support.sessions import Logits, apart, frame_tokens, frames, sharing


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> Logits:
    return Logits(monkeypatch)


def test_whole_frames_that_were_overwritten_stay_as_they_were_read(logits: Logits) -> None:
    speaking = apart(encode="prune")
    window = FrameWindow(WindowOptions(frames=2))
    shown = whole(0)
    said(speaking, shown, QUERY, None, window)
    shown.image[...] = 0
    got = logits.of(speaking, whole(1), QUERY, window=window)
    torch.testing.assert_close(got, logits.of(sharing(speaking), [whole(0), whole(1)], QUERY), atol=1e-5, rtol=0)


def test_positions_depend_on_the_windows_content_alone() -> None:
    """Days of frames: no position ever lies beyond what these frames themselves take."""
    speaking = apart(max_tokens=1)
    window = FrameWindow(WindowOptions(frames=2))
    ends = set()
    for day in range(12):
        said(speaking, packet(day, media_s=1e5 * day + 1e5), QUERY, None, window)
        if day:
            ends.add((speaking.prompts.cache.position, len(speaking.prompts.cache)))
    short = apart(max_tokens=1)
    said(short, [packet(0, media_s=1.0), packet(1, media_s=2.0)], QUERY)
    assert max(end[0] for end in ends) < short.prompts.cache.position + 24  # times of more digits, no more


def test_memory_stays_as_it_is_once_the_window_is_full() -> None:
    speaking = apart(max_tokens=2)
    window = FrameWindow(WindowOptions(frames=2, kept=3))
    kept = []
    for seed in range(8):
        said(speaking, packet(seed, media_s=float(seed % 10)), QUERY, None, window)
        kept.append(speaking.last.kept_bytes)
    assert kept[0] < kept[1] < kept[2] == kept[3] == kept[-1]
    layers, heads, head_dim, float32 = 3, 1, 32, 4
    a_token = 2 * layers * heads * head_dim * float32
    frame = frame_tokens(speaking, packet(0)) * a_token + 6 * 64 * float32 + 6 * 3 * 32 * 32
    assert window.bytes == 3 * frame
    prompts = speaking.prompts
    prompt = len(prompts.ids.head) + 2 * frame_tokens(speaking, packet(0)) + len(prompts.question(QUERY))
    assert prompt < ROOM_TOKENS
    assert kept[-1] == window.bytes + ROOM_TOKENS * a_token


def test_another_system_prompt_empties_the_window(logits: Logits) -> None:
    """Its frames were read after the old one."""
    speaking = apart()
    window = FrameWindow(WindowOptions(frames=2))
    logits.of(speaking, frames(0), QUERY, window=window)
    speaking.configure(replace(speaking.options, system="there are two green squares"))
    got = logits.of(speaking, frames(1), QUERY, window=window)
    fresh = FrameWindow(WindowOptions(frames=2))
    torch.testing.assert_close(got, logits.of(sharing(speaking), frames(1), QUERY, window=fresh), atol=1e-5, rtol=0)
    assert len(window.frames) == 1
    speaking.configure(replace(speaking.options, system=None))
    with pytest.raises(OptionError, match="no frame"):
        said(speaking, [], QUERY, None, window)
    assert not torch.equal(got, logits.of(apart(), frames(1), QUERY, window=FrameWindow(WindowOptions(frames=2))))


@pytest.mark.parametrize(("on_cut", "shown"), [("empty", [2, 3]), ("keep", [1, 2, 3])])
def test_a_cut_empties_the_window_unless_it_is_to_be_kept(on_cut: Any, shown: Sequence[int], logits: Logits) -> None:
    speaking = apart()
    window = FrameWindow(WindowOptions(frames=3, on_cut=on_cut))
    for frame in frames(0, 1, 2, 3):
        after = frame.stamp.frame_index > 1
        cut = replace(frame, stamp=replace(frame.stamp, epoch=2)) if after else frame
        got = logits.of(speaking, cut, QUERY, window=window)
    assert [stamp.frame_index for stamp in speaking.last.shown] == shown
    if on_cut == "keep":
        torch.testing.assert_close(got, logits.of(sharing(speaking), frames(*shown), QUERY), atol=1e-5, rtol=0)


def test_a_window_without_frames_cannot_be_asked() -> None:
    with pytest.raises(OptionError, match="no frame"):
        said(apart(), [], QUERY, None, FrameWindow())


def test_a_window_too_long_for_the_context_is_refused_with_its_first_frame() -> None:
    speaking = apart(max_tokens=100)
    window = FrameWindow(WindowOptions(frames=400))
    with pytest.raises(
        ContextLengthError, match=r"window of 400 frames of 6 .* context of 4096; show at most (\d+)"
    ) as e:
        said(speaking, packet(0), QUERY, None, window)
    fitting = int(str(e.value).split("at most ")[1].split(",")[0])
    other = len(speaking.prompts.ids.head) + len(speaking.prompts.question(QUERY)) + 100
    size = frame_tokens(speaking, packet(0))
    assert other + fitting * size <= 4096 < other + (fitting + 1) * size
    assert not window.frames


def test_a_budget_that_may_grow_counts_at_its_largest() -> None:
    speaking = apart(max_tokens=100)
    small = packet(0, tokens=1)
    said(speaking, small, QUERY, None, FrameWindow(WindowOptions(frames=200, budget=4)))
    with pytest.raises(ContextLengthError, match="200 frames of 12 visual tokens"):  # the grid has no more than 12
        said(speaking, small, QUERY, None, FrameWindow(WindowOptions(frames=200, budget=400)))


def test_a_frame_whose_allocation_failed_does_not_end_the_stream() -> None:
    """It comes whole, with more tokens than any other."""
    speaking = apart(max_tokens=100)
    window = FrameWindow(WindowOptions(frames=200, budget=4))
    for shown in (packet(0, tokens=1), replace(whole(1), stamp=packet(1).stamp), packet(2, tokens=1)):
        assert said(speaking, shown, QUERY, None, window)
    assert speaking.last.tokens_used == 1 + 12 + 1


def test_a_longer_question_that_leaves_no_room_is_refused_and_nothing_is_lost() -> None:
    speaking = apart(max_tokens=20)
    window = FrameWindow(WindowOptions(frames=3))
    said(speaking, frames(0), QUERY, None, window)
    unit = len(speaking.qwen.plain_token_ids("a" * 500)) / 500
    room = 4096 - speaking.prompts.other_tokens("") - 2 * frame_tokens(speaking, packet(0))
    long = "a" * int((room - 2) / unit)
    with pytest.raises(ContextLengthError, match=r"show at most [12],"):
        speaking.prompts.check_window(long, window)
    with pytest.raises(ContextLengthError, match=r"show at most [12],"):
        said(speaking, [], long, None, window)
    assert said(speaking, frames(1), QUERY, None, window)
    assert len(window.frames) == 2


def test_a_window_too_large_for_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    speaking = apart()
    window = FrameWindow(WindowOptions(frames=10))
    said(speaking, packet(0), QUERY, None, window)
    monkeypatch.setattr("arr_coc.qwen.window_limits.free_bytes", lambda device: 5 * window.bytes)
    fresh = FrameWindow(WindowOptions(frames=10))
    with pytest.raises(OptionError, match=r"shows 10 frames and keeps 10 .* free on cpu; show at most 2, or lower"):
        said(speaking, packet(0), QUERY, None, fresh)
    assert not fresh.frames


def test_nan_is_never_kept() -> None:
    speaking = apart()
    window = FrameWindow(WindowOptions(frames=2))
    said(speaking, frames(0), QUERY, None, window)
    keys = speaking.qwen.language_model.layers[1].self_attn.k_proj.weight.data
    good = keys.clone()
    keys[0] = torch.nan
    with pytest.raises(NonFiniteError, match="the keys of layer 1 hold NaN"):
        said(speaking, frames(1), QUERY, None, window)
    keys.copy_(good)
    assert len(window.frames) == 1
    assert said(speaking, frames(1), QUERY, None, window) == said(sharing(speaking), frames(0, 1), QUERY)


def test_an_unknown_way_to_read_frames() -> None:
    with pytest.raises(OptionError, match="causal, window, got 'loose'"):
        AnswerOptions(frames="loose")  # type: ignore[arg-type]


def test_a_prompt_may_begin_with_the_frame(monkeypatch: pytest.MonkeyPatch, logits: Logits) -> None:
    """A chat template that says nothing before it."""
    speaking = apart()
    speaking.prompts.ids = replace(speaking.prompts.ids, head=())
    got = logits.of(speaking, frames(0, 1), QUERY)
    assert torch.isfinite(got).all()
    assert speaking.prompts.cache.marks[0].tokens == 0
    again = sharing(speaking)
    again.prompts.ids = speaking.prompts.ids
    logits.of(again, frames(1, 2), QUERY)
    torch.testing.assert_close(logits.of(again, frames(0, 1), QUERY), got, atol=1e-5, rtol=0)
