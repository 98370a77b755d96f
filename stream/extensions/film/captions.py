"""Captions of a film: the cue of each moment, and its letters on a dark ground, blended into a picture.

Only the samples under a caption change: it is drawn into the planes of the video, without a conversion to RGB.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

import av
import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from stream.sinks.captions import Cue, CueTrack, caption_text
from stream.sinks.fonts import TextRenderer

LINES = 3
"""Most lines of a caption."""

LETTERS_A_SIDE = 20
"""Heights of letters in the shorter side of a picture: 54 px of 1080, as subtitles on television have."""

PLAIN_PX = 16
LETTERS_A_LINE = 16
"""Height of letters that everyone can read, which small pictures have if this many fit into their width."""

LEAST_PX = 10
"""Least height of letters; smaller ones cannot be read."""

SIZES = (1.0, 0.8)
"""Shares of the usual height of letters, tried in turn until a caption fits."""

MARGIN = 0.05
"""Share of the picture's sides that stays free: some screens cut off that much."""

MOST_OF_HEIGHT = 0.5
"""Share of the picture's height that a caption may cover."""

DARKNESS = 0.65
"""Opacity of the ground: white letters stand out on a white picture, and the picture still shows."""

BLACK = 16
WHITE = 235
NEUTRAL = 128
"""Luma of limited range, and chroma without colour."""

Samples = npt.NDArray[np.float32]


class FilmCues:
    """Cues of a run's answers so far."""

    def __init__(self) -> None:
        self._track = CueTrack()
        self._done: list[Cue] = []

    def answer(self, at_s: float, text: str) -> None:
        """Show an answer from a media time on."""
        cue = self._track.answer(at_s, caption_text(text))
        if cue is not None:
            self._done.append(cue)

    def text_at(self, at_s: float) -> str:
        """Return the caption at a media time; empty if there is none."""
        at_ms = round(at_s * 1000)
        last = self._track.open
        if last is not None and at_ms >= last.start_ms:
            return last.text
        place = bisect_right(self._done, at_ms, key=lambda cue: cue.start_ms)
        if place and at_ms < self._done[place - 1].end_ms:
            return self._done[place - 1].text
        return ""

    def finish(self, end_s: float | None) -> list[Cue]:
        """Return all cues; the last one ends at a media time, or if that is None after a second."""
        self._track.finish(end_s)
        last = self._track.open
        return [*self._done, *([] if last is None else [last])]


@dataclass(frozen=True, slots=True)
class DrawnCaption:
    """Caption as it is blended into planes: a sample becomes `keep` times itself plus `add`, both float32 [h, w]."""

    left: int
    top: int
    keep: Samples
    add: Samples

    def blend(self, picture: av.VideoFrame) -> None:
        """Draw it into a picture, yuv420p of limited range, in place."""
        height, width = self.keep.shape
        keep = cv2.resize(self.keep, (width // 2, height // 2), interpolation=cv2.INTER_AREA)
        _blend(picture.planes[0], self.left, self.top, self.keep, self.add)
        for plane in picture.planes[1:3]:
            _blend(plane, self.left // 2, self.top // 2, keep, NEUTRAL * (1 - keep))


def _blend(plane: av.video.plane.VideoPlane, left: int, top: int, keep: Samples, add: Samples) -> None:
    samples = np.ndarray((plane.height, plane.line_size), np.uint8, buffer=plane)
    part = samples[top : top + keep.shape[0], left : left + keep.shape[1]]
    part[:] = np.rint(part * keep + add)


@lru_cache(maxsize=4)
def drawn_caption(text: str, width_px: int, height_px: int) -> DrawnCaption:
    """Draw a caption for pictures of a size: centred lines near the lower edge, all even sides.

    The letters become smaller if the caption does not fit; one that never does ends in an ellipsis.
    """
    room_px = width_px * (1 - 2 * MARGIN)
    plain_px = min(PLAIN_PX, width_px // LETTERS_A_LINE)
    usual_px = max(min(width_px, height_px) // LETTERS_A_SIDE, plain_px)
    lines: list[str] = []
    for share in SIZES:
        letters = TextRenderer(max(LEAST_PX, round(usual_px * share)))
        step_px = round(letters.height_px * 1.3)
        pad_px = letters.height_px // 2
        most = max(1, min(LINES, int(height_px * MOST_OF_HEIGHT) // step_px))
        lines = letters.wrapped(text, room_px - 2 * pad_px, most)
        if not lines or not lines[-1].endswith("…") or text.endswith("…"):
            break
    lines = _balanced(letters, text, lines, room_px - 2 * pad_px)
    widest_px = max((letters.width_px(line) for line in lines), default=0.0)
    width = min(_even(widest_px + 2 * pad_px), width_px)
    height = min(_even(len(lines) * step_px + pad_px), height_px)
    ground = Image.new("L", (width, height))
    corner_px = min(pad_px, height // 2)
    ImageDraw.Draw(ground).rounded_rectangle((0, 0, width - 1, height - 1), corner_px, fill=round(255 * DARKNESS))
    words = Image.new("L", (width, height))
    pen = ImageDraw.Draw(words)
    for place, line in enumerate(lines):
        left_px = (width - letters.width_px(line)) / 2
        letters.draw(pen, left_px, pad_px / 2 + place * step_px + letters.height_px, line, "#ffffff")
    white: Samples = np.asarray(words, np.float32) / np.float32(255)
    dark: Samples = np.asarray(ground, np.float32) / np.float32(255) * (1 - white)
    margin_px = round(min(width_px, height_px) * MARGIN)
    return DrawnCaption(
        left=(width_px - width) // 4 * 2,
        top=max(0, height_px - height - margin_px) // 2 * 2,
        keep=np.float32(1) - white - dark,
        add=white * np.float32(WHITE) + dark * np.float32(BLACK),
    )


def _balanced(letters: TextRenderer, text: str, lines: list[str], room_px: float) -> list[str]:
    """Return as many lines of about the same length, which are easier to read than a full line and a single word."""
    for tenths in range(4, 10):
        narrow = letters.wrapped(text, room_px * tenths / 10, len(lines))
        if narrow and " ".join(narrow) == " ".join(lines):
            return narrow
    return lines


def _even(length_px: float) -> int:
    return -(-round(length_px) // 2) * 2
