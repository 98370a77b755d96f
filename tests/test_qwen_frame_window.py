"""Which frames a window keeps, and which of them a question picks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from arr_coc.errors import OptionError
from arr_coc.qwen.frame_window import FrameWindow, suitability
from arr_coc.qwen.kept_frame import KeptFrame, Wrapping
from arr_coc.qwen.options import WindowOptions
from arr_coc.types import FrameStamp, TileGrid

CAT, DOG = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])


def frame(
    index: int,
    embeds: Sequence[torch.Tensor] = (CAT,),
    relevance: Sequence[float] = (1.0,),
    epoch: int = 1,
    head: tuple[int, ...] = (7,),
) -> KeptFrame:
    rows = torch.zeros(1, 1, len(embeds) + 2, 4)
    return KeptFrame(
        stamp=FrameStamp(index, 0, 0, epoch),
        wrapping=Wrapping(head, (8,), (9,)),
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


def window(*entered: KeptFrame, **options: Any) -> FrameWindow:
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
