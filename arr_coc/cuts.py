"""Scene cuts, judged on the frame itself, without looking ahead.

A cut replaces the picture all over and at once. What does not:

| event | what it leaves | the rule that says so |
| --- | --- | --- |
| exposure step, fade, dissolve | detail, up to a factor | pictures are compared by normalised correlation |
| pan, whip pan, hand-held camera | detail, moved | a part may be found anywhere in the frame before |
| title, window, moving object | most of the frame | enough must be replaced; lighting does not count |
| coloured light | detail, in place | another hue everywhere counts only where detail changed too |
| flash, black frame, glitch | the frames before it come back | the frame must resemble none of the last few |
| fade from black | the faint frame before it | a frame that shows nothing is never a cut |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.thumbnail import Thumbnail

REPLACED_SHARE = 0.35
"""Least share of the frame that a cut replaces. Two pictures with half their area flat and alike still differ in this
much; a title, a window or a vehicle that passes covers less."""

OUTLIER = 8.0
"""Difference, of 255, above which a texel of the glance was replaced: above noise, compression and small movements of
texture."""

UNLIKENESS = 0.45
"""Least unlikeness of a cut. Parts of unrelated pictures correlate with their best place by 0.46 or less (98 of 100
pairs, drawn and filmed); those of a whip pan that is blurred by half the frame by 0.69 or more. This is the
middle."""

RECOLOURED_SHARE = 0.6
"""Share of the frame with another hue from which little detail says enough: two plain shots may hold nothing but a few
objects that resemble each other. Frames within a shot measure 0.3 at most, on film, drawings and screens."""

DISPLACED = 0.5
"""How much the detail of such shots must differ in place (1 − correlation); the same picture in another light measures
less."""

FAINT = 1.5
"""Standard deviation of detail, of 255, below which a picture shows nothing: rounding, noise, the start of a fade."""

DETAIL_SIGMA = 4.0
"""Texels of the glance. What is smoother than this is layout and light (sky above, ground below), which unrelated
shots share."""

FLAT = 6
"""Range of values, of 255, within which a border row or column is a letterbox bar."""

MEMORY_FRAMES = 5
"""How many frames a disturbance may last, after which the same picture comes back; a flash takes one to three."""

HISTOGRAM_BINS = 32

LEAST_SHOWN = 0.25
"""Least share of the glance between the bars; a frame that shows less has no bars but is dark."""

Glance = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CutVerdict:
    """Whether a frame begins a new shot, and the signals behind it, all against the frame before.

    `replaced`: share of the frame that differs by more than lighting. `unlikeness` in [0, 1]: 1 − the correlation of
    the picture's best-found part; 0 where it shows nothing. `recoloured`: share whose hue differs. These two are 0
    where too little is replaced for a cut. `score` in [0, 1]: `unlikeness` times `replaced`. The others do not decide:
    `histogram` in [0, 1], half the L1 distance of the histograms, mean over y, u and v; `luma_jump`, change of mean
    luma, of 255; `dirty_share`, share of changed tiles.
    """

    is_cut: bool = False
    score: float = 0.0
    dirty_share: float = 0.0
    unlikeness: float = 0.0
    replaced: float = 0.0
    recoloured: float = 0.0
    histogram: float = 0.0
    luma_jump: float = 0.0


NO_CUT = CutVerdict()


class SceneCutDetector:
    """Says of each frame whether it begins a new shot: `judge` asks, `advance` goes on to the next frame."""

    def __init__(self) -> None:
        self._frame = 0
        self._seen: deque[tuple[int, Glance]] = deque()

    def judge(self, before: Thumbnail, after: Thumbnail, dirty_share: float) -> CutVerdict:
        """The verdict for a frame that changed much. `before` is the picture that `dirty_share` refers to."""
        old, new = before.glance, after.glance
        verdict = CutVerdict(
            dirty_share=dirty_share,
            replaced=_replaced_share(old, new),
            histogram=_histogram_distance(old, new),
            luma_jump=float(new[0].mean()) - float(old[0].mean()),
        )
        if verdict.replaced < REPLACED_SHARE:
            return verdict
        unlikeness, recoloured = _unlikeness(old[0], new[0]), _recoloured_share(old, new)
        return replace(
            verdict,
            is_cut=_is_another(old, new, unlikeness, recoloured) and not self._was_there(new),
            score=unlikeness * verdict.replaced,
            unlikeness=unlikeness,
            recoloured=recoloured,
        )

    def advance(self, before: Thumbnail | None = None, after: Thumbnail | None = None) -> None:
        """Remembers a frame that changed much, and the one before it; without them, that a frame has passed."""
        if before is not None and after is not None:
            self._seen += [(self._frame - 1, before.glance), (self._frame, after.glance)]
        self._frame += 1
        while self._seen and self._seen[0][0] < self._frame - MEMORY_FRAMES:
            self._seen.popleft()

    def forget(self) -> None:
        """Where the next frame cannot be compared with what was seen."""
        self._seen.clear()

    def _was_there(self, glance: Glance) -> bool:
        """Whether the picture was there a few frames ago."""
        return any(
            not _is_another(seen, glance, _unlikeness(seen[0], glance[0]), _recoloured_share(seen, glance))
            for _, seen in self._seen
        )


def _is_another(old: Glance, new: Glance, unlikeness: float, recoloured: float) -> bool:
    """Whether two pictures are of different shots: by detail, wherever it is, or by hue and detail in place."""
    if unlikeness >= UNLIKENESS:
        return True
    return recoloured >= RECOLOURED_SHARE and _displaced(old[0], new[0]) >= DISPLACED


def _displaced(old: Glance, new: Glance) -> float:
    """1 − the correlation of the detail of two pictures, in place; 0 where one shows nothing."""
    before, after = _detail(old), _detail(new)
    if min(before.std(), after.std()) < FAINT:
        return 0.0
    return 1.0 - float(np.corrcoef(before.ravel(), after.ravel())[0, 1])


def _unlikeness(old: Glance, new: Glance) -> float:
    """1 − the best normalised correlation of a part of `new`, wherever in `old`; both are luma uint8 [36, 64].

    The parts are two halves, free to move sideways, and three bands, free to move up and down.
    """
    shown = _without_bars(old, new)
    before, after = _detail(old[shown]), _detail(new[shown])
    if after.std() < FAINT:
        return 0.0
    rows, cols = after.shape
    inner_rows, inner_cols = slice(rows // 12, rows - rows // 12), slice(cols // 12, cols - cols // 12)
    halves = [after[inner_rows, : cols // 2], after[inner_rows, cols // 2 :]]
    bands = [after[rows * third // 3 : rows * (third + 1) // 3, inner_cols] for third in range(3)]
    parts = (*halves, *bands)
    found = [
        float(cv2.matchTemplate(before, part, cv2.TM_CCOEFF_NORMED).max()) for part in parts if part.std() >= FAINT
    ]
    return min(1.0, 1.0 - max(found, default=1.0))


def _without_bars(old: Glance, new: Glance) -> tuple[slice, slice]:
    """The rows and columns between the letterbox bars that both pictures have; all of them where hardly any would be
    left."""
    rows, cols = (_between_bars(old, new, axis) for axis in (1, 0))
    small = (rows.stop - rows.start) * (cols.stop - cols.start) < old.size * LEAST_SHOWN
    return (slice(None), slice(None)) if small else (rows, cols)


def _between_bars(old: Glance, new: Glance, axis: int) -> slice:
    size = old.shape[1 - axis]
    busy = np.flatnonzero((np.ptp(old, axis=axis) > FLAT) | (np.ptp(new, axis=axis) > FLAT))
    first, last = (int(busy[0]), int(busy[-1]) + 1) if len(busy) else (0, 0)
    # Where there is a bar, the texels at its edge mix it with the picture.
    return slice(first + (first > 0), last - (last < size))


def _detail(luma: Glance) -> Floats:
    picture = luma.astype(np.float32)
    return picture - cv2.GaussianBlur(picture, (0, 0), DETAIL_SIGMA)


def _replaced_share(old: Glance, new: Glance) -> float:
    """Share of texels whose chroma, or whose luma after the gain and offset that fit most texels best, differs
    clearly."""
    before, after = old[0].ravel().astype(np.float32), new[0].ravel().astype(np.float32)
    fits = np.ones(before.size, bool)
    for _ in range(2):
        residual = np.abs(_relit(before, after, fits) - after)
        fits = residual <= max(OUTLIER / 2, 2 * float(np.median(residual)))
    luma = np.abs(_relit(before, after, fits) - after) > OUTLIER
    chroma = (cv2.absdiff(old[1:], new[1:]) > OUTLIER).any(axis=0)
    return float((luma | chroma.ravel()).mean())


def _recoloured_share(old: Glance, new: Glance) -> float:
    """Share of texels whose chroma is not that of before, made stronger (at most twice) or fainter, as light does."""
    before, after = (glance[1:].reshape(2, -1).astype(np.float32) - 128 for glance in (old, new))
    strength = np.maximum((before * before).sum(axis=0), 1e-6)
    gain = np.clip((before * after).sum(axis=0) / strength, 0, 2)
    residual = after - gain * before
    return float(((residual * residual).sum(axis=0) > OUTLIER * OUTLIER).mean())


def _relit(before: Floats, after: Floats, fits: npt.NDArray[np.bool_]) -> Floats:
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
