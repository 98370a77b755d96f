"""Whether a window fits, and what is said where it does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from arr_coc.budget import TokenLimits
from arr_coc.errors import ContextLengthError, OptionError
from arr_coc.qwen.encoding import Packet
from arr_coc.qwen.frame_window import FrameDelimiters
from arr_coc.qwen.options import WindowOptions
from arr_coc.qwen.window_limits import FrameSize, check_context, check_memory, expected_size, free_bytes, kept_size
from arr_coc.types import Encode, FramePacket, FrameStamp, TileGrid, TokenPacket
from tests.arr_coc.qwen.test_frame_window import frame, window

WRAPPING = FrameDelimiters((1, 2, 3), (4, 5), (6,))
SAME = FrameSize(1, 2, 4)
"""What the frames of these tests take."""

STAMP = FrameStamp(0, 0, 0)

CPU = torch.device("cpu")


def model(context: int) -> Any:
    return SimpleNamespace(max_context_tokens=context, model_id="it")


def test_a_frame_takes_its_tokens_or_its_positions_whichever_are_more() -> None:
    wide = TileGrid.of(64, 320)
    assert FrameSize.of(wide, 7, WRAPPING).steps == 3 + 10
    assert FrameSize.of(wide, 17, WRAPPING).steps == FrameSize.of(wide, 17, WRAPPING).tokens == 3 + 17


def test_frames_are_expected_at_the_most_tokens_that_they_may_have() -> None:
    grid = TileGrid.of(96, 128)
    regions = np.zeros((5, 3), np.int32)
    chosen = TokenPacket(STAMP, grid, regions, np.ones(5, np.float32), np.zeros((5, 3, 32, 32), np.uint8))
    every = FramePacket(STAMP, grid, regions, np.ones(grid.shape, np.float32), np.zeros((96, 128, 3), np.uint8))

    def expected(packet: Packet, encode: Encode, most: int | None) -> int:
        return expected_size(packet, encode, WRAPPING, window(budget=most)).visual_tokens

    assert [expected(chosen, "sparse", most) for most in (None, 9, 100)] == [5, 9, 12]
    assert [expected(every, encode, 9) for encode in ("full", "prune", "sparse")] == [12, 9, 9]
    assert [kept_size(frame(0), window(budget=most)).visual_tokens for most in (None, 9, 100)] == [1, 9, 12]
    limited = window(budget="adaptive", limits=TokenLimits(2, 7))
    assert kept_size(frame(0), limited).visual_tokens == 7


@pytest.mark.parametrize(("context", "frames"), [(100, 9), (109, 9), (110, 10)])
def test_the_largest_window_that_fits_is_named(context: int, frames: int) -> None:
    size = FrameSize(7, 3, 1)
    check_context(model(context), WindowOptions(frames), size, 10)
    with pytest.raises(ContextLengthError, match=f"context of {context}; show at most {frames}, or lower"):
        check_context(model(context), WindowOptions(frames + 1), size, 10)


def test_a_frame_that_does_not_fit_alone_is_not_the_windows_fault() -> None:
    check_context(model(15), WindowOptions(3), FrameSize(7, 3, 1), 10)


def test_memory_for_kept_and_shown_frames() -> None:
    one = frame(0)
    check_memory(window(frames=4), one, SAME, free=8 * one.bytes)
    with pytest.raises(OptionError, match=r"shows 4 frames and keeps 4 needs .* free on cpu; show at most 3, or"):
        check_memory(window(frames=4), one, SAME, free=8 * one.bytes - 1)
    check_memory(window(frames=2, kept=6), one, SAME, free=8 * one.bytes)
    with pytest.raises(OptionError, match=r"keeps 6 .*; keep at most 5, or"):
        check_memory(window(frames=2, kept=6), one, SAME, free=8 * one.bytes - 1)


def test_what_is_there_already_needs_no_more_memory() -> None:
    one = frame(0)
    held = window(frame(0), frame(1), frames=4)
    check_memory(held, one, SAME, free=6 * one.bytes)
    with pytest.raises(OptionError, match="show at most 3"):
        check_memory(held, one, SAME, free=6 * one.bytes - 1)
    check_memory(window(*(frame(index) for index in range(4)), frames=4), one, SAME, free=0)


def test_frames_count_at_the_most_tokens_that_they_may_have() -> None:
    one = frame(0)
    most = FrameSize(10 * one.tokens - 2, 2, 4)
    check_memory(window(frames=1), one, most, free=20 * one.bytes)
    with pytest.raises(OptionError, match="show at most 0"):
        check_memory(window(frames=1), one, most, free=20 * one.bytes - one.bytes)


def test_free_memory_is_the_machines_or_the_containers(tmp_path: Path) -> None:
    machine = psutil.virtual_memory().available
    assert free_bytes(CPU, tmp_path) == pytest.approx(machine, rel=0.3)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert free_bytes(CPU, tmp_path) == pytest.approx(machine, rel=0.3)
    (tmp_path / "memory.max").write_text("12\n")
    assert free_bytes(CPU, tmp_path) == 7
    (tmp_path / "memory.current").write_text("50\n")
    assert free_bytes(CPU, tmp_path) == 0
