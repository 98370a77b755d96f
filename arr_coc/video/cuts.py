"""Scene-cut detector without look-ahead.

A cut replaces the picture all over and at once. What does not:

| event | what it leaves | the rule that says so |
| --- | --- | --- |
| exposure step, fade, dissolve | detail, up to a factor | pictures are compared by normalised correlation |
| pan, whip pan, hand-held camera | detail, moved | a part may be found anywhere in the frame before |
| title, window, moving object | most of the frame | enough must be replaced; lighting does not count |
| zoom, turn, shake, slide, parallax | blocks, moved with their neighbours | if many are found again it is one shot |
| the same over texture of single pixels | the texture, at full size | a cut is reported only after a search there |
| coloured light | detail, in place | another hue everywhere counts only if detail changed too |
| animated transition, static, fast motion | nothing, frame after frame | a cut stands out from the frames before it |
| flash, black frame, glitch | the frames before it come back | the frame must resemble none of the last few |
| fade from black | the faint frame before it | a frame that shows nothing is never a cut |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import FramePlanes
from arr_coc.video.motion import (
    BlockMatch,
    Thumbnail,
    full_size_match_share,
    in_place_match_share,
    match_blocks,
    without_bars,
)

OUTLIER = 8.0
"""Difference, of 255, above which a texel of the glance was replaced: above noise, compression and small movements of
texture."""

REPLACED = 0.35
"""Least share of the frame that a cut replaces. Two pictures with half their area flat and alike still differ in this
much; a title, a window or a vehicle that passes covers less."""

DISPLACED = 0.5
"""Least difference of such shots' detail in place (1 − correlation); the same picture in another light measures
less."""

FAINT = 1.5
"""Standard deviation of detail, of 255, below which a picture shows nothing: rounding, noise, the start of a fade."""

FOUND = 0.3
"""Share of blocks of the new picture that, found in the old one, makes it the same shot. Across a hard cut 0.24 are
found at most (476 cuts of the tuning material)."""

NOT_FOUND = 0.1
"""Share of blocks found up to which a picture is another one, whatever light might explain of the glance."""

PLAIN_SHARE = 0.3
THROUGHOUT = 0.9
"""Share of blocks with detail below which a picture is plain. Its few things are found again in another plain shot that
holds things of their shapes, so there blocks do not outweigh another hue in this share of the frame. Whip pans over
plain pictures measure 0.7."""

BRIGHT = 232
BLOWN_SHARE = 0.3
"""From this share of texels above that luma on, light may have hidden what was there, as a flash does."""

UNLIKE = 0.45
"""Least unlikeness of a cut. Parts of unrelated pictures correlate with their best place by 0.46 or less (98 of 100
pairs, drawn and filmed); those of a whip pan that is blurred by half the frame by 0.69 or more. This is the middle."""

RECOLOURED = 0.6
"""Share of the frame with another hue from which little detail says enough: two plain shots may hold nothing but a few
objects that resemble each other. Frames within a shot measure 0.3 at most, on film, drawings and screens."""

TEXTURED_MIN = 0.06
"""Least share of blocks with detail, in both pictures, for which not finding them counts: a white or black frame holds
nothing that could be found, a dark one little."""

STANDS_OUT = 1.8
"""How many times the unrest before it a cut's difference is, at least. In the tuning material 98 % of cuts exceed it by
1.4 and 95 % by 4.5; frames of whip pans, slides and flights that nothing else explains by 1.6 or less."""

DEPARTURE_MIN = 6.0
"""Mean difference of the glance, of 255, below which nothing is looked for."""

HISTORY_FRAMES = 5
"""Frames that a disturbance may last, after which the same picture comes back; a flash takes one to three."""

UNREST_LEFT = 0.6
"""Share of the unrest that is left a frame later: a second cut of the same strength counts from the third frame on."""

MOVED_UNREST = 0.5
"""Share of its departure that a frame counts as unrest if the camera's motion explains it: cuts between two pans."""

SmallPicture = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CutVerdict:
    """Verdict whether a frame begins a new shot, and the signals behind it, all against the frame before.

    `departure`: mean difference of the glance, of 255, largest of y, u and v; `unrest`: what was left of the departures
    before. `replaced`: share of the frame that differs by more than lighting. `unlikeness` in [0, 1]: 1 − the
    correlation of the picture's best-found part; 0 if it shows nothing. `recoloured`: share whose hue differs.
    `match_share`: share of blocks that were in the picture before; `textured`: share of blocks that could be. These
    four are 0 if the frame does not stand out enough for a cut. `score` in [0, 1]: 1 − `match_share`. `dirty_share`:
    share of changed tiles, which does not decide.
    """

    is_cut: bool = False
    score: float = 0.0
    dirty_share: float = 0.0
    departure: float = 0.0
    unrest: float = 0.0
    unlikeness: float = 0.0
    replaced: float = 0.0
    recoloured: float = 0.0
    match_share: float = 0.0
    textured: float = 0.0

    @property
    def became_plain(self) -> bool:
        """True if enough was replaced for a cut, but the new picture has no detail in which one shows."""
        return not self.is_cut and self.replaced >= REPLACED and self.unlikeness == 0.0


NO_CUT = CutVerdict()


class SceneCutDetector:
    """Detector of new shots: `judge` checks a frame, `advance` goes on to the next one."""

    def __init__(self) -> None:
        self._frame = 0
        self._history: deque[tuple[int, Thumbnail]] = deque()
        self._unrest = 0.0

    def judge(
        self,
        before: Thumbnail,
        after: Thumbnail,
        dirty_share: float,
        planes: tuple[FramePlanes, FramePlanes] | None = None,
    ) -> CutVerdict:
        """Return the verdict for a frame that changed much.

        Args:
            before: The frame before, which `dirty_share` refers to.
            after: The frame.
            dirty_share: Share of changed tiles, in [0, 1].
            planes: Planes of `before` and `after`, in which texture is looked for that is too fine for thumbnails.
        """
        old = before.downscaled
        new = after.downscaled
        verdict = CutVerdict(
            dirty_share=dirty_share,
            departure=_departure(old, new),
            unrest=self._unrest,
        )
        if verdict.departure < STANDS_OUT * verdict.unrest:
            return verdict
        verdict = self._judged(before, after, replace(verdict, replaced=_replaced_share(old, new)))
        if verdict.is_cut and planes is not None and full_size_match_share(*planes, FOUND) >= FOUND:
            return replace(verdict, is_cut=False, score=0.0)
        return verdict

    def advance(
        self, before: Thumbnail | None = None, after: Thumbnail | None = None, camera_moved: bool = False
    ) -> None:
        """Remember a frame that changed much, and the one before it; without them, that a frame has passed.

        `camera_moved`: one shift of the whole picture explains the change.
        """
        departure = 0.0
        if before is not None and after is not None:
            departure = _disturbance(before.downscaled, after.downscaled) * (MOVED_UNREST if camera_moved else 1.0)
            if not self._history or self._history[-1][1] is not before:
                self._history.append((self._frame - 1, before))
            self._history.append((self._frame, after))
        self._unrest = max(departure, UNREST_LEFT * self._unrest)
        self._frame += 1
        while self._history and self._history[0][0] < self._frame - HISTORY_FRAMES:
            self._history.popleft()

    def forget(self) -> None:
        """Forget earlier frames, because the next frame cannot be compared with them."""
        self._history.clear()
        self._unrest = 0.0

    def _judged(self, before: Thumbnail, after: Thumbnail, verdict: CutVerdict) -> CutVerdict:
        """Return the verdict on a frame that stands out, from the dearer signals."""
        old = before.downscaled
        new = after.downscaled
        by_glance = verdict.replaced >= REPLACED
        if by_glance:
            unlikeness = _unlikeness(old[0], new[0])
            recoloured = _recoloured_share(old, new)
            verdict = replace(verdict, unlikeness=unlikeness, recoloured=recoloured)
            by_glance = _is_another(old, new, unlikeness, recoloured)
        if not by_glance and verdict.departure < DEPARTURE_MIN:
            return verdict
        match = match_blocks(before, after, FOUND)
        is_new = match.match_share < FOUND or (by_glance and _is_plain_and_recoloured(old, new, verdict, match))
        is_cut = is_new and (by_glance or _is_unknown(match, new)) and not self._was_there(after, by_glance)
        score = 1.0 - match.match_share if is_cut else 0.0
        return replace(verdict, is_cut=is_cut, score=score, match_share=match.match_share, textured=match.textured)

    def _was_there(self, after: Thumbnail, by_glance: bool) -> bool:
        """Return True if the picture was there a few frames ago."""
        return any(
            _is_alike(picture, after) if by_glance else in_place_match_share(picture, after) >= FOUND
            for _, picture in self._history
        )


def _is_unknown(match: BlockMatch, downscaled: SmallPicture) -> bool:
    """Return True if a picture with detail follows another one and shares none of it, though light explains the
    glance."""
    if match.match_share > NOT_FOUND or match.textured < TEXTURED_MIN:
        return False
    return float((downscaled[0] > BRIGHT).mean()) < BLOWN_SHARE


def _is_plain_and_recoloured(old: SmallPicture, new: SmallPicture, verdict: CutVerdict, match: BlockMatch) -> bool:
    """Return True if two plain pictures differ in hue throughout, and hold their few things in other places."""
    if match.textured >= PLAIN_SHARE or verdict.recoloured < THROUGHOUT:
        return False
    return _displaced(old[0], new[0]) >= DISPLACED


def _is_alike(before: Thumbnail, after: Thumbnail) -> bool:
    old = before.downscaled
    new = after.downscaled
    return not _is_another(old, new, _unlikeness(old[0], new[0]), _recoloured_share(old, new))


def _disturbance(old: SmallPicture, new: SmallPicture) -> float:
    """Return how much a frame unsettles what follows: not at all if light went out or on."""
    shows_nothing = min(_detail(old[0]).std(), _detail(new[0]).std()) < FAINT
    return 0.0 if shows_nothing else _departure(old, new)


def _departure(old: SmallPicture, new: SmallPicture) -> float:
    return max(float(channel.mean()) for channel in cv2.absdiff(old, new))


def _is_another(old: SmallPicture, new: SmallPicture, unlikeness: float, recoloured: float) -> bool:
    """Return True if two pictures are of different shots: by detail, wherever it is, or by hue and detail in place."""
    if unlikeness >= UNLIKE:
        return True
    return recoloured >= RECOLOURED and _displaced(old[0], new[0]) >= DISPLACED


def _displaced(old: SmallPicture, new: SmallPicture) -> float:
    """1 − the correlation of the detail of two pictures, in place; 0 if one shows nothing."""
    before = _detail(old)
    after = _detail(new)
    if min(before.std(), after.std()) < FAINT:
        return 0.0
    return 1.0 - float(np.corrcoef(before.ravel(), after.ravel())[0, 1])


def _unlikeness(old: SmallPicture, new: SmallPicture) -> float:
    """1 − the best normalised correlation of a part of `new`, wherever in `old`; both are luma uint8 [36, 64].

    The parts are two halves, free to move sideways, and three bands, free to move up and down.
    """
    view = without_bars(old, new)
    before = _detail(old[view])
    after = _detail(new[view])
    if after.std() < FAINT:
        return 0.0
    rows, cols = after.shape
    inner_rows = slice(rows // 12, rows - rows // 12)
    inner_cols = slice(cols // 12, cols - cols // 12)
    halves = [after[inner_rows, : cols // 2], after[inner_rows, cols // 2 :]]
    bands = [after[rows * third // 3 : rows * (third + 1) // 3, inner_cols] for third in range(3)]
    parts = (*halves, *bands)
    correlations = [
        float(cv2.matchTemplate(before, part, cv2.TM_CCOEFF_NORMED).max()) for part in parts if part.std() >= FAINT
    ]
    return min(1.0, 1.0 - max(correlations, default=1.0))


def _detail(luma: SmallPicture) -> Floats:
    picture = luma.astype(np.float32)
    # Texels of the glance. What is smoother than this is layout and light (sky above, ground below), which unrelated
    # shots share.
    return picture - cv2.GaussianBlur(picture, (0, 0), 4.0)


def _replaced_share(old: SmallPicture, new: SmallPicture) -> float:
    """Return the share of texels whose chroma, or whose luma after the gain and offset that fit most texels best,
    differs clearly."""
    before = old[0].ravel().astype(np.float32)
    after = new[0].ravel().astype(np.float32)
    fits = np.ones(before.size, bool)
    for _ in range(2):
        residual = np.abs(_relit(before, after, fits) - after)
        fits = residual <= max(OUTLIER / 2, 2 * float(np.median(residual)))
    luma = np.abs(_relit(before, after, fits) - after) > OUTLIER
    chroma = (cv2.absdiff(old[1:], new[1:]) > OUTLIER).any(axis=0)
    return float((luma | chroma.ravel()).mean())


def _recoloured_share(old: SmallPicture, new: SmallPicture) -> float:
    """Return the share of texels whose chroma is not that of before, made stronger (at most twice) or fainter, as light
    does."""
    before, after = (downscaled[1:].reshape(2, -1).astype(np.float32) - 128 for downscaled in (old, new))
    strength = np.maximum((before * before).sum(axis=0), 1e-6)
    gain = np.clip((before * after).sum(axis=0) / strength, 0, 2)
    residual = after - gain * before
    return float(((residual * residual).sum(axis=0) > OUTLIER * OUTLIER).mean())


def _relit(before: Floats, after: Floats, fits: npt.NDArray[np.bool_]) -> Floats:
    """`before` under the light of `after`: gain and offset by least squares over the texels that `fits` names."""
    x = before[fits]
    y = after[fits]
    mean_x = x.mean()
    mean_y = y.mean()
    spread = float(np.vdot(x - mean_x, x - mean_x))
    if spread > 0:
        gain = max(0.0, float(np.vdot(x - mean_x, y - mean_y)) / spread)
    else:
        gain = 1.0
    return gain * (before - mean_x) + mean_y
