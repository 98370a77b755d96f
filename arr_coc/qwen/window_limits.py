"""Limits of a window of frames: the model's context, and the memory of its device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from arr_coc.budget import most_tokens
from arr_coc.errors import ContextLengthError, OptionError, counted
from arr_coc.qwen.checkpoint import CGROUP, free_memory_bytes
from arr_coc.qwen.encoding import Packet, token_count
from arr_coc.qwen.frame_window import CachedFrame, FrameDelimiters, FrameWindow
from arr_coc.qwen.options import WindowOptions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import Encode, FramePacket, TileGrid


@dataclass(frozen=True, slots=True)
class FrameSize:
    """Size of one frame: its visual tokens, those of its heading and closing, and the longer side of its grid."""

    visual_tokens: int
    text_tokens: int
    side_tiles: int

    @classmethod
    def of(cls, grid: TileGrid, visual_tokens: int, wrapping: FrameDelimiters) -> FrameSize:
        """Of a frame of `grid` in `wrapping`."""
        return cls(visual_tokens, len(wrapping.opening) + len(wrapping.closing), max(grid.shape))

    @property
    def tokens(self) -> int:
        """In memory."""
        return self.visual_tokens + self.text_tokens

    @property
    def steps(self) -> int:
        """Of the context: tokens or positions, whichever are more. Few tokens of a large grid still stand far apart."""
        return self.text_tokens + max(self.visual_tokens, self.side_tiles)


def check_context(qwen: QwenVL, window: WindowOptions, frame: FrameSize, other_tokens: int) -> None:
    """Raises ContextLengthError where the window, full of such frames, does not fit beside `other_tokens`.

    Said with the first frame, so that no stream fails once its window has filled. The message names the most frames
    that fit. Where not even one does, it is not the window's fault, and nothing is raised.
    """
    context = qwen.max_context_tokens
    fitting = (context - other_tokens) // frame.steps
    if 1 <= fitting < window.frames:
        raise ContextLengthError(
            f"a window of {counted(window.frames, 'frame')} of {counted(frame.visual_tokens, 'visual token')} takes "
            f"up to {window.frames * frame.steps + other_tokens} tokens with the question and the answer, but "
            f"{qwen.model_id} has a context of {context}; show at most {fitting}, or lower the budget"
        )


def check_memory(window: FrameWindow, frame: CachedFrame, expected: FrameSize, free: int | None = None) -> None:
    """Raises OptionError where the window, full of frames of the expected size, needs more memory than is free.

    The frames that are shown count twice: as they are kept, and rotated into their slots. `free` in bytes is measured
    where it is not given. The message names the most frames that fit.
    """
    options, held = window.options, len(window.frames)
    if held == options.capacity:
        return
    device = frame.keys[0].device
    size = max(1, frame.bytes * expected.tokens // frame.tokens)
    free = free_bytes(device) if free is None else free
    needed = (options.capacity - held + options.frames) * size
    if needed <= free:
        return
    room = free // size + held
    same = options.capacity == options.frames
    remedy = f"show at most {room // 2}" if same else f"keep at most {max(room - options.frames, 0)}"
    raise OptionError(
        f"a window that shows {counted(options.frames, 'frame')} and keeps {options.capacity} needs "
        f"{megabytes(needed)} more, and {megabytes(free)} are free on {device}; {remedy}, or lower the budget"
    )


def expected_size(packet: Packet, encode: Encode, wrapping: FrameDelimiters, window: FrameWindow) -> FrameSize:
    """Return the size of frames such as this one, with the most visual tokens that they may have.

    A whole frame where only chosen tokens are encoded is one whose allocation failed: an exception, not the rule.
    """
    exception = isinstance(packet, FramePacket) and encode in {"sparse", "incremental"}
    visual_tokens = 0 if exception else token_count(packet, encode)
    return FrameSize.of(packet.grid, max(visual_tokens, _most(packet.grid, window)), wrapping)


def kept_size(frame: CachedFrame, window: FrameWindow) -> FrameSize:
    """Return the size of frames such as this one, with the most visual tokens that they may have."""
    return FrameSize.of(frame.grid, max(frame.visual_tokens, _most(frame.grid, window)), frame.wrapping)


def free_bytes(device: torch.device, cgroup: Path = CGROUP) -> int:
    """Memory that can still be had on a device; on the CPU as `free_memory_bytes` has it."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    return free_memory_bytes(cgroup)


def megabytes(count: int) -> str:
    """Bytes as text for people."""
    return f"{count / 1e6:,.1f} MB"


def _most(grid: TileGrid, window: FrameWindow) -> int:
    options = window.options
    return 0 if options.budget is None else most_tokens(options.budget, grid.tiles, options.limits)
