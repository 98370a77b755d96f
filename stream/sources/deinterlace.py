"""Deinterlacing: frames whose odd and even lines show two moments become pictures of one moment, by FFmpeg's bwdif."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import av
from av.filter import Graph

from arr_coc.types import Colour
from stream.sources.planes import colour_of

log = logging.getLogger(__name__)

_STORAGE_ONLY = frozenset({"png", "apng"})
"""Codecs whose "interlaced" is an order of storage (Adam7): their pictures show one moment."""

_PLANAR = ("yuv4", "yuvj4", "yuva4", "gray")
_PACKED = ("nv", "p0", "p2", "p4", "yuyv", "uyvy", "yvyu")
"""Beginnings of the names of formats that the filter takes as they are, and rearranged without loss."""

PROGRESSIVE_FRAMES = 100
"""After so many frames in a row that are not interlaced, they go past the filter again, which holds one frame back."""


REACH_LINES = 4
"""Reach of bwdif, in lines of a plane."""


class Deinterlacer:
    """Filter of the frames of one decoder: one frame out for each frame in, with its times.

    `auto` changes frames that are flagged as interlaced; until the first of them, frames are passed on at no cost. `on`
    changes all, `off` none. The filter needs the next frame, so it holds one back, which `rest` returns at the end.
    """

    def __init__(self, setting: str, codec: str) -> None:
        """`codec` is the name of the decoder's codec."""
        self.reach_px = 0
        """`FramePlanes.reach_px` of the frames: 0 until the filter has begun."""
        self._always = setting == "on"
        self._off = setting == "off" or codec in _STORAGE_ONLY
        self._graph: Graph | None = None
        self._form: tuple[int, int, str, Colour] | None = None
        self._pending: deque[av.VideoFrame] = deque()
        self._progressive_frames = 0

    def put(self, frame: av.VideoFrame) -> Sequence[av.VideoFrame]:
        """Return the frames that are complete with the next decoded frame."""
        interlaced = self._always or frame.interlaced_frame
        if self._graph is None and (self._off or not interlaced):
            return (frame,)
        self._progressive_frames = 0 if interlaced else self._progressive_frames + 1
        form = _form_of(frame)
        rest: Sequence[av.VideoFrame] = ()
        if form != self._form or self._progressive_frames > PROGRESSIVE_FRAMES:
            rest = self.rest()
            if not interlaced or not self._begin(frame):
                return (*rest, frame)
        assert self._graph is not None
        self._pending.append(frame)
        self._graph.vpush(frame)
        return (*rest, *self._complete())

    def rest(self) -> Sequence[av.VideoFrame]:
        """Return the frames that are held back, at an end or before another format; the filter then begins anew."""
        if self._graph is None:
            return ()
        self._graph.vpush(None)
        frames = (*self._complete(), *self._pending)
        self._pending.clear()
        self._graph = self._form = None
        self._progressive_frames = 0
        return frames

    def _begin(self, frame: av.VideoFrame) -> bool:
        """Prepare the filter for frames such as this one; return False, and say why, if it does not take them."""
        name = frame.format.name
        reason = ""
        if not name.startswith((*_PLANAR, *_PACKED)) or (name.startswith("gray") and name != "gray"):
            reason = f"its format is {name}"
        else:
            try:
                self._graph = _filter(frame, "all" if self._always else "interlaced")
            except (av.FFmpegError, ValueError) as error:
                reason = str(error)
        if reason:
            self._off = True
            log.warning("interlaced video is shown as it is coded: it cannot be deinterlaced (%s)", reason)
            return False
        self._form = _form_of(frame)
        self.reach_px = max(self.reach_px, REACH_LINES * (64 // frame.format.chroma_height(64)))
        return True

    def _complete(self) -> list[av.VideoFrame]:
        frames: list[av.VideoFrame] = []
        assert self._graph is not None
        while True:
            try:
                frame = self._graph.vpull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return frames
            # the filter counts in half a time base, and gives other durations
            coded = self._pending.popleft()
            frame.pts = coded.pts
            frame.duration = coded.duration
            if coded.time_base is not None:
                frame.time_base = coded.time_base
            frames.append(frame)


def _form_of(frame: av.VideoFrame) -> tuple[int, int, str, Colour]:
    """Return what a filter is made for."""
    return frame.width, frame.height, frame.format.name, colour_of(frame)


def _filter(frame: av.VideoFrame, frames: str) -> Graph:
    graph = Graph()
    time_base = frame.time_base or Fraction(1, 25)  # the filter's own times are not used
    filters = [graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=time_base)]
    if not frame.format.name.startswith(_PLANAR):
        # rearranges samples; without these options it would convert them to another matrix and range
        colour = colour_of(frame)
        levels = "full" if colour.full_range else "limited"
        matrix = f"in_color_matrix={colour.matrix}:out_color_matrix={colour.matrix}"
        filters.append(graph.add("scale", f"{matrix}:in_range={levels}:out_range={levels}"))
    # one thread leaves the other cores to the other stages: 2 ms for 1080i
    filters.append(graph.add("bwdif", f"mode=send_frame:parity=auto:deint={frames}:threads=1"))
    filters.append(graph.add("buffersink"))
    for begin, end in pairwise(filters):
        begin.link_to(end)
    graph.configure()
    return graph
