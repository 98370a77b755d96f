"""Scene cuts, judged on the frame itself, without looking ahead.

A cut replaces the picture's structure, all over and at once. What does not:

| event | what it leaves as it was | the rule that says so |
| --- | --- | --- |
| exposure step, fade | gradients, up to a factor | structure is compared by correlation |
| flash, black frame, glitch | the frames before it come back | the frame must resemble none of the last few |
| fade from or to black | the faint frame before it | a frame without structure is never a cut |
| pan, hand-held camera | the picture, moved | the shift between the two frames explains them |
| whip pan, explosion | nothing, but it goes on for frames | a cut stands out from the frames just before it |
| title, window, moving object | most of the frame | enough of the frame must have been replaced |
| exposure step with a moving object | most of the frame, up to a factor | …and lighting does not count as replacing |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.motion import Shift
from arr_coc.thumbnail import Thumbnail

REPLACED_SHARE = 0.35
"""Least share of the frame that a cut replaces. Two pictures with half their area flat and alike still differ in this much; a
title, a window or a vehicle that passes covers less."""

OUTLIER = 8.0
"""Difference, of 255, above which a texel of the glance was replaced: above noise, compression and small movements of texture."""

STRUCTURE = 0.65
"""Least structural change of a cut. Gradients of unrelated pictures correlate by 0 ± 0.15, so that a cut changes 0.85 or more;
a hand-held camera's frames, not aligned, change up to 0.4. This is the middle."""

STANDS_OUT = 0.3
"""By how much a cut must change more structure than each of the last `ONSET_FRAMES` did."""

ONSET_FRAMES = 2
"""Two, because animation often shows each picture twice."""

FAINT = 2.0
"""Mean gradient (of 255 a texel of the glance) below which a frame shows nothing: rounding, noise, the start of a fade."""

MEMORY_FRAMES = 5
"""How many frames a disturbance may last, after which the same picture comes back; a flash takes one to three."""

HISTOGRAM_BINS = 32

Glance = npt.NDArray[np.uint8]
Gradients = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CutVerdict:
    """Whether a frame begins a new shot, and the signals behind it, all against the frame before.

    `score` in [0, 1]: `structure`, at most 1, times `replaced`. `dirty_share`: share of changed tiles. `structure` in [0, 2]:
    1 − correlation of the luma gradients; 0 where camera motion explains the change or the frame shows nothing. `replaced`: share of
    the frame that differs by more than lighting. `histogram` in [0, 1]: half the L1 distance of the histograms, mean over y, u
    and v. `luma_jump`: change of mean luma, of 255. Only `structure` and `replaced` decide.
    """

    is_cut: bool = False
    score: float = 0.0
    dirty_share: float = 0.0
    structure: float = 0.0
    replaced: float = 0.0
    histogram: float = 0.0
    luma_jump: float = 0.0


class SceneCutDetector:
    """Says of each frame whether it begins a new shot. Call `judge` or `calm` once a frame, in order."""

    def __init__(self) -> None:
        self._frame = 0
        self._seen: deque[tuple[int, Gradients]] = deque()
        self._changes: deque[float] = deque(maxlen=ONSET_FRAMES)

    def reset(self) -> None:
        """Forgets the past, where the next frame cannot be compared with it."""
        self._seen.clear()
        self._changes.clear()

    def calm(self, dirty_share: float) -> CutVerdict:
        """The verdict for a frame of which so little changed that it needs no look."""
        self._frame += 1
        self._changes.append(0.0)
        return CutVerdict(dirty_share=dirty_share)

    def judge(self, before: Thumbnail, after: Thumbnail, dirty_share: float, shift: Shift) -> CutVerdict:
        """The verdict for a frame that changed much. `before` is the picture that `dirty_share` and `shift` refer to."""
        self._frame += 1
        old, new = _gradients(before.glance), _gradients(after.glance)
        faint = float(np.abs(new).mean()) < FAINT
        structure = 0.0 if faint or shift else _change(old, new)
        replaced = _replaced_share(before.glance, after.glance)
        is_cut = (
            replaced >= REPLACED_SHARE
            and structure >= STRUCTURE
            and structure >= max(self._changes, default=0.0) + STANDS_OUT
            and not self._came_back(new)
        )
        self._seen += [(self._frame - 1, old), (self._frame, new)]
        self._changes.append(structure)
        return CutVerdict(
            is_cut=is_cut,
            score=min(1.0, structure) * replaced,
            dirty_share=dirty_share,
            structure=structure,
            replaced=replaced,
            histogram=_histogram_distance(before.glance, after.glance),
            luma_jump=float(after.glance[0].mean()) - float(before.glance[0].mean()),
        )

    def _came_back(self, gradients: Gradients) -> bool:
        """Whether the picture was there a few frames ago."""
        while self._seen and self._seen[0][0] < self._frame - MEMORY_FRAMES:
            self._seen.popleft()
        return any(_change(seen, gradients) < STRUCTURE for _, seen in self._seen)


def _gradients(glance: Glance) -> Gradients:
    """Luma gradients by Sobel: float32 [2, 36, 64] (horizontal, vertical), of 255 a texel."""
    luma = glance[0]
    return np.stack([cv2.Sobel(luma, cv2.CV_32F, dx, 1 - dx, scale=1 / 8) for dx in (1, 0)])


def _change(old: Gradients, new: Gradients) -> float:
    """1 − the correlation of two gradient fields about zero: 0 the same up to a factor, 1 unrelated, 2 inverted."""
    energy = float(np.vdot(old, old)) * float(np.vdot(new, new))
    return 1.0 - float(np.vdot(old, new)) / energy**0.5 if energy > 0 else 1.0


def _replaced_share(old: Glance, new: Glance) -> float:
    """Share of texels whose chroma, or whose luma after the gain and offset that fit most texels best, differs clearly."""
    before, after = old[0].ravel().astype(np.float32), new[0].ravel().astype(np.float32)
    fits = np.ones(before.size, bool)
    for _ in range(2):
        residual = np.abs(_relit(before, after, fits) - after)
        fits = residual <= max(OUTLIER / 2, 2 * float(np.median(residual)))
    luma = np.abs(_relit(before, after, fits) - after) > OUTLIER
    chroma = (cv2.absdiff(old[1:], new[1:]) > OUTLIER).any(axis=0)
    return float((luma | chroma.ravel()).mean())


def _relit(before: Gradients, after: Gradients, fits: npt.NDArray[np.bool_]) -> Gradients:
    """`before` under the light of `after`: gain and offset by least squares over the texels that `fits` names."""
    x, y = before[fits], after[fits]
    mean_x, mean_y = x.mean(), y.mean()
    spread = float(np.vdot(x - mean_x, x - mean_x))
    gain = max(0.0, float(np.vdot(x - mean_x, y - mean_y)) / spread) if spread > 0 else 1.0
    return gain * (before - mean_x) + mean_y


def _histogram_distance(old: Glance, new: Glance) -> float:
    def of(channel: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        return cv2.calcHist([channel], [0], None, [HISTOGRAM_BINS], [0, 256])

    texels = old[0].size
    return sum(float(np.abs(of(a) - of(b)).sum()) for a, b in zip(old, new, strict=True)) / (2 * texels * len(old))
