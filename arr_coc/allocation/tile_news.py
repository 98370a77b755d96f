"""`TileNews`: which tiles show something else than when the model was shown them, in flickering light and noise.

A tile whose level 2 stays within `CHANGE` of what was shown is no news. One that does not is judged by what the change
means:

1. Light. The gain of light, by channel, is estimated from all tiles: the weighted median of the frame, or of each row,
   because the bands of the mains' frequency lie across the picture, or of 5×5 tiles, for one lamp of several. A median
   of many tiles does not follow a thing that covers few of them. A large thing of one colour would be a gain as well.
   But it is not in three quarters of a row, and it has an edge: 5×5 tiles count only if smooth steps lead from the
   light of the rows to theirs. The finer estimate is taken if it leaves a tenth less unexplained. Light that changed
   by up to `LIGHT`, or up to `SWUNG_LIGHT` if it lately went to and fro across the change, is no news. With no change
   of light the gain is 1 and nothing is explained by it.
2. Unrest. What is left must exceed what the tile does from look to look anyway. That is the median of its texels'
   differences, so a digit or a cursor does not count, and the median of five looks, so what passes does not count
   either. Noise explains no change above `LARGEST_CHANGE`.
3. Time. Tiles of which a change was explained are in doubt, and are judged at every look until they show the same
   again. Noise has no lasting mean, so the mean of a tile's looks while in doubt is held to a lower limit.

Cost: for 1080p below 1 ms if a dozen tiles were written, 2 ms for 200, and 5 to 10 ms if all were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]
Picture = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]

CHANGE = 12
"""Largest difference, of 255, of the means of 4×4 pixels in a tile that shows the same under steady light. A stroke of
text two pixels wide at a tenth of full contrast is above it."""

LIGHT = 1.25
"""Gain of light, or its inverse, that is no news: the swing of a flicker of ±10 %, and a tenth of that. A lamp of two
that is turned off changes values by 1.37, half the light at a gamma of 2.2."""

SWUNG_LIGHT = 1.6
SWINGS = 2
LIGHT_LOOKS = 8
"""The same where light crossed the middle of the change at least twice in the last eight looks: the swing of ±20 % and
a little more. Light that stays changed becomes news once eight looks have after nothing else."""

UNREST_LOOKS = 5
"""Looks whose median is a tile's unrest: it must be restless in three."""

UNREST_CHANGE = 7.4
"""Least change in units of unrest: the median of |x| is 0.67 σ, so five σ of a difference of two looks. Of a frame's
400,000 texels, one in four looks is above."""

LASTING_LOOKS = 4
LASTING_CHANGE = 5.2
"""Least looks in doubt after which their mean counts, and least mean in units of unrest: five σ of one look, which is
the noise of what was shown."""

LARGEST_CHANGE = 36
"""Change that no unrest explains: a seventh of full contrast, less than a thing of another colour. Noise of 12 of a
pixel in each channel, with its colours coded at half resolution, reaches it."""

WINDOW = 5
"""Tiles along a window for light that is no frame's and no row's."""

STEP = 0.08
MEETING = 0.03
"""Largest step of gain within 3×3 tiles inside smooth light: a lamp of ±20 % makes 0.07. And how near the light of the
rows such light begins."""

AGREEMENT = 0.06
"""Largest difference of gain between a row and a quarter of it that agrees: half of `CHANGE`, at a value of 100."""

FINER = 0.9
"""Share of the unexplained that a finer estimate of light may leave."""

SAMPLE = 128
"""Tiles, or up to twice as many, by which an estimate of light is chosen."""

DARK = 24
BRIGHT = 245
CLIPPED = 250
"""Means between which a tile shows the light, and the value from which a texel may hide more of it."""

MOST_GAIN = 8
"""Gain, or its inverse, above which light is all the same: news."""

SIDE = 8
"""Texels of level 2 along a tile."""

_NEIGHBOURS = np.ones((3, 3), np.uint8)


def is_other_picture(reference: Picture, current: Picture, tiles: Flags, share: float) -> bool:
    """Return True if most of a picture shows something else, whatever its light and unrest.

    It looks at up to SAMPLE tiles, in a fiftieth of the time of `TileNews.look`.

    Args:
        reference: Level 2 of a picture, uint8 [8 gh, 8 gw, 3].
        current: That of another one.
        tiles: Tiles that were written in between, bool [gh, gw].
        share: Least share of all tiles.
    """
    indices = np.flatnonzero(tiles)
    if len(indices) <= share * tiles.size:
        return False
    sample = np.zeros(tiles.size, bool)
    sample[indices[:: max(1, len(indices) // SAMPLE)]] = True
    before, now = (_texels(picture, sample.reshape(tiles.shape)) for picture in (reference, current))
    other = cv2.absdiff(before, now).reshape(len(before), -1).max(axis=1) > LARGEST_CHANGE
    return bool(other.mean() * len(indices) > share * tiles.size)


@dataclass(frozen=True, slots=True, eq=False)
class Doubts:
    """Tiles of which a change was explained: `tiles` int64 [n], `total` float32 [n, 3, 64], the sum of what light does
    not explain over their `looks` int32 [n]."""

    tiles: Indices
    total: Values
    looks: npt.NDArray[np.int32]

    @classmethod
    def none(cls) -> Doubts:
        """Return no doubts."""
        return cls(np.zeros(0, np.int64), np.zeros((0, 3, SIDE * SIDE), np.float32), np.zeros(0, np.int32))

    def with_look(self, tiles: Indices, residual: Values, tile_count: int) -> Doubts:
        """Return the doubts of these tiles, with what this look leaves unexplained [n, 3, 64]."""
        places = np.full(tile_count, -1)
        places[self.tiles] = np.arange(len(self.tiles))
        places = places[tiles]
        total = residual.copy()
        looks = np.ones(len(tiles), np.int32)
        matches = places >= 0
        total[matches] += self.total[places[matches]]
        looks[matches] += self.looks[places[matches]]
        return Doubts(tiles, total, looks)

    def of(self, selection: Flags) -> Doubts:
        """Return those of `selection` bool [n]."""
        return Doubts(self.tiles[selection], self.total[selection], self.looks[selection])


@dataclass(frozen=True, slots=True, eq=False)
class TileNews:
    """State of a stream's light and unrest up to a look; a value, so a look that was no more than a preview
    can be dropped. Pictures are level 2, uint8 [8 gh, 8 gw, 3], all of one epoch.

    `picture`: that of the last look. `light` float32 [gh, gw, 3, 3]: for each channel, the gain in the middle of a
    tile, and by how much it grows from one tile to the next, down and across; `shown_light` when each was shown.
    `votes` float32 [gh, gw, 3]: each tile's own gain, NaN if it shows none. `past_light` float32 [8, gh, gw, 3] and
    `unrest` float32 [5, gh, gw, 3]: of the last looks.
    """

    picture: Picture
    light: Values
    shown_light: Values
    votes: Values
    past_light: Values
    unrest: Values
    doubts: Doubts
    is_first: bool = True

    @classmethod
    def of(cls, picture: Picture) -> TileNews:
        """Return the beginning: all tiles were shown in this picture."""
        shape = picture.shape[0] // SIDE, picture.shape[1] // SIDE
        light = _planes_of(np.ones((*shape, 3), np.float32))
        return cls(
            picture=picture.copy(),
            light=light,
            shown_light=light,
            votes=light[..., 0],
            past_light=np.ones((LIGHT_LOOKS, *shape, 3), np.float32),
            unrest=np.zeros((UNREST_LOOKS, *shape, 3), np.float32),
            doubts=Doubts.none(),
        )

    @property
    def has_doubts(self) -> bool:
        """True if a tile may soon become news although it does not change any more."""
        return bool((self.doubts.looks < LASTING_LOOKS).any())

    def showing(self, tiles: Flags) -> TileNews:
        """Return the state once these tiles bool [gh, gw] are shown as they were at the last look."""
        if not tiles.any():
            return self
        return replace(
            self,
            shown_light=np.where(tiles[..., None, None], self.light, self.shown_light),
            votes=np.where(tiles[..., None], self.light[..., 0], self.votes),
            doubts=self.doubts.of(~tiles.ravel()[self.doubts.tiles]),
        )

    def look(self, reference: Picture, current: Picture, tiles: Flags) -> tuple[Flags, TileNews]:
        """Return which tiles bool [gh, gw] are news, and the state after this look.

        Args:
            reference: Each tile as it was when it was last shown to the model.
            current: The picture of this look.
            tiles: Tiles that were written since the last look, bool [gh, gw]. Of others, only those in doubt can be
                news.
        """
        targets = tiles.copy()
        targets.ravel()[self.doubts.tiles] = True
        news = np.zeros_like(tiles)
        if not targets.any():
            return news, self
        indices = np.flatnonzero(targets)
        before, now, last = (_texels(picture, targets) for picture in (reference, current, self.picture))
        differs = cv2.absdiff(before, now).reshape(len(indices), -1).max(axis=1) > CHANGE
        votes = self.votes.copy()
        _rows(votes)[indices] = _rows(_gains(reference, current))[indices] * _rows(self.shown_light)[indices, :, 0]
        state = replace(self, picture=current.copy(), votes=votes, doubts=Doubts.none(), is_first=False)
        is_steady = np.array_equal(self.light, self.shown_light)
        if is_steady and not differs.any():
            return news, replace(state, unrest=self._next_unrest(indices, cv2.absdiff(last, now)))
        if differs.any():
            different = indices[differs]
            before = before[differs]
            after = now[differs]
        else:  # light that comes back is noted: the next tile may be shown in it
            different = indices
            before = before
            after = now
        was = before.astype(np.float32)
        is_now = after.astype(np.float32)
        light = self.light
        if not is_steady or len(indices) > min(WINDOW * WINDOW, tiles.shape[1]) // 2:  # fewer move no median
            light = state._light_of(reference, different, was, is_now)
        since = _relative(light, self.light, indices)
        unrest = self._next_unrest(indices, np.abs(now - _lit(last.astype(np.float32), since)))
        state = replace(
            state, light=light, past_light=np.concatenate([self.past_light[1:], light[None, ..., 0]]), unrest=unrest
        )
        state = state._in_unit_light()
        if not differs.any():
            return news, state
        residual = _residual(was, is_now, _relative(light, self.shown_light, different))
        doubts = self.doubts.with_look(different, residual, tiles.size)
        restless = _rows(np.sort(unrest, axis=0)[UNREST_LOOKS // 2])[different]
        is_news = _exceeds(residual, UNREST_CHANGE * restless) | ~self._is_usual_light(light, different)
        count = doubts.looks.astype(np.float32)[:, None]
        lasts = _exceeds(doubts.total / count[..., None], LASTING_CHANGE * np.sqrt(1 + 1 / count) * restless)
        is_news |= lasts & (doubts.looks >= LASTING_LOOKS)
        news.ravel()[different[is_news]] = True
        return news, replace(state, doubts=doubts.of(~is_news))

    def _in_unit_light(self) -> TileNews:
        """Return the same state with 1 as the mean of the last light: steps that no tile could show add up."""
        unit = self.light[..., 0].mean(axis=(0, 1))
        return replace(
            self,
            light=self.light / unit[:, None],
            shown_light=self.shown_light / unit[:, None],
            votes=self.votes / unit,
            past_light=self.past_light / unit,
        )

    def _next_unrest(self, indices: Indices, differences: npt.NDArray) -> Values:
        """Return the unrest of the last looks, with the medians of the differences [n, 3, 64] of judged tiles."""
        unrest = np.concatenate([self.unrest[1:], np.zeros_like(self.unrest[:1])])
        if differences.dtype != np.uint8:
            differences = (differences * 64).astype(np.uint16)  # sorts ten times as fast
            middle = np.sort(differences, axis=2)[..., 24:40].mean(axis=2) / 64
        else:  # of whole numbers, the mean of the middle quarter says more than the median
            middle = np.sort(differences, axis=2)[..., 24:40].mean(axis=2)
        _rows(unrest[-1])[indices] = middle
        if self.is_first:  # tiles have no past yet: the calmer quarter of the picture speaks for them
            unrest[:] = np.minimum(unrest[-1], np.quantile(unrest[-1], 0.25, axis=(0, 1)))
        return unrest

    def _is_usual_light(self, light: Values, tiles: Indices) -> Flags:
        """Return which of the tiles [n] are shown in light that is near that of now, or swings between the two."""
        now = _rows(light)[tiles, :, 0]
        before = _rows(self.shown_light)[tiles, :, 0]
        size = np.abs(np.log(now / before))
        above = self.past_light.reshape(LIGHT_LOOKS, -1, 3)[:, tiles] > np.sqrt(now * before)
        swings = np.count_nonzero(above[1:] != above[:-1], axis=0) >= SWINGS
        usual: Flags = (size < np.where(swings, np.log(SWUNG_LIGHT), np.log(LIGHT))).all(axis=1)
        return usual

    def _light_of(self, reference: Picture, tiles: Indices, before: Values, now: Values) -> Values:
        """Return the light of this look [gh, gw, 3, 3], by the votes and by what it explains in the tiles [n]."""
        cols = self.votes.shape[1]
        weights = _tile_means(reference)
        weights[np.isnan(self.votes)] = 0  # a bright tile shows more of the light than a dark one
        votes = np.where(weights > 0, self.votes, 1)
        of_frame = _weighted_medians(votes.reshape(1, -1, 3), weights.reshape(1, -1, 3), np.ones(3, np.float32))
        by_row = np.repeat(_row_gains(votes, weights, of_frame)[:, None], cols, axis=1)
        by_window = _smooth_light(np.where(weights > 0, votes, by_row), by_row)
        part = slice(None, None, max(1, len(tiles) // SAMPLE))
        tiles = tiles[part]
        before = before[part]
        now = now[part]
        best = self.light
        least = np.inf
        for gains in (np.broadcast_to(of_frame, votes.shape), by_row, by_window):
            light = _planes_of(np.ascontiguousarray(gains, np.float32))
            residual = _residual(before, now, _relative(light, self.shown_light, tiles))
            unexplained = float(np.minimum(np.abs(residual).mean(axis=(1, 2)), CHANGE).sum())
            if unexplained < FINER * least:
                best = light
                least = unexplained
        return best


def _row_gains(votes: Values, weights: Values, of_frame: Values) -> Values:
    """Return the median gain of each row [gh, 3] where three of its quarters agree, or else that of the frame [1, 3]:
    a wide thing is in fewer."""
    gains = _weighted_medians(votes, weights, of_frame)
    agree = np.zeros(len(votes), np.int64)
    for quarter in np.array_split(np.arange(votes.shape[1]), min(4, votes.shape[1])):
        part = _weighted_medians(votes[:, quarter], weights[:, quarter], gains)
        agree += (np.abs(part - gains) < AGREEMENT).all(axis=1)
    return np.where((agree >= 3)[:, None], gains, of_frame)


def _smooth_light(votes: Values, by_row: Values) -> Values:
    """Return the median gain of 5×5 tiles [gh, gw, 3] where smooth steps lead there from that of the rows, or else the
    latter."""
    gains = cv2.medianBlur(np.ascontiguousarray(votes, np.float32), WINDOW)
    smooth = cv2.morphologyEx(gains, cv2.MORPH_GRADIENT, _NEIGHBOURS).max(axis=2) < STEP
    _, labels = cv2.connectedComponents(smooth.astype(np.uint8), connectivity=4)
    meets = smooth & (np.abs(gains - by_row).max(axis=2) < MEETING)
    trusted = smooth & np.isin(labels, np.unique(labels[meets]))
    trusted = cv2.dilate(trusted.astype(np.uint8), _NEIGHBOURS) > 0
    return np.where(trusted[..., None], gains, by_row)


def _weighted_medians(values: Values, weights: Values, fallback: Values) -> Values:
    """Return the medians along the second axis of [r, c, 3], the fallback if all weights of a row are 0: [r, 3]."""
    by_channel, weights = (np.ascontiguousarray(array.transpose(0, 2, 1)) for array in (values, weights))
    order = np.argsort(by_channel, axis=2)
    sums = np.cumsum(np.take_along_axis(weights, order, 2), axis=2)
    middle = (sums >= sums[..., -1:] / 2).argmax(axis=2)[..., None]
    medians = np.take_along_axis(by_channel, np.take_along_axis(order, middle, 2), 2)[..., 0]
    return np.where(sums[..., -1] > 0, medians, fallback)


def _planes_of(gains: Values) -> Values:
    """Return gains [gh, gw, 3] with their slopes down and across: [gh, gw, 3, 3 (middle, down, across)]."""
    wide = cv2.copyMakeBorder(gains, 1, 1, 1, 1, cv2.BORDER_REPLICATE)
    down = wide[2:, 1:-1] - wide[:-2, 1:-1]
    across = wide[1:-1, 2:] - wide[1:-1, :-2]
    return np.stack([gains, down / 2, across / 2], axis=3)


def _relative(light: Values, other: Values, tiles: Indices) -> Values:
    """Return one light by another one at the texels of tiles: [n, 3, 64]; [n, 3, 1] if neither has a slope."""
    now = _rows(light)[tiles]
    then = _rows(other)[tiles]
    if not (now[..., 1:].any() or then[..., 1:].any()):
        return now[..., :1] / then[..., :1]
    return np.matmul(now, _POSITIONS) / np.maximum(np.matmul(then, _POSITIONS), 0.1)


_OFFSETS = (np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2) / SIDE
_POSITIONS = np.stack([np.ones(SIDE * SIDE, np.float32), _OFFSETS.repeat(SIDE), np.tile(_OFFSETS, SIDE)])
"""1, and a texel's place down and across in its tile, of [−½, ½]: float32 [3, 64]."""


def _rows(values: Values) -> Values:
    """Return values of tiles [gh, gw, …] one tile after the other, a view of them if they are contiguous."""
    return values.reshape(-1, *values.shape[2:])


def _texels(picture: Picture, tiles: Flags) -> Picture:
    """Return the texels of tiles: uint8 [n, 3, 64]."""
    rows, cols = np.nonzero(tiles)
    by_tile = picture.reshape(tiles.shape[0], SIDE, tiles.shape[1], SIDE * 3)
    return np.ascontiguousarray(by_tile[rows, :, cols].reshape(-1, SIDE * SIDE, 3).transpose(0, 2, 1))


def _tile_means(picture: Picture) -> Values:
    """Return the means of all tiles of a picture: float32 [gh, gw, 3], rounded."""
    size = picture.shape[1] // SIDE, picture.shape[0] // SIDE
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA).astype(np.float32)


def _gains(before: Picture, now: Picture) -> Values:
    """Return the gain of each tile's mean [gh, gw, 3]; NaN of one that is too dark or too bright to show it."""
    was = _tile_means(before)
    is_now = _tile_means(now)
    is_clear = (was > DARK) & (was < BRIGHT) & (is_now < BRIGHT)
    return np.where(is_clear, (is_now / np.maximum(was, 1)).clip(1 / MOST_GAIN, MOST_GAIN), np.float32(np.nan))


def _lit(texels: Values, gains: Values) -> Values:
    """Return texels [n, 3, 64] in other light."""
    return np.minimum(texels * gains, 255)


def _residual(before: Values, now: Values, gains: Values) -> Values:
    """Return what gains do not explain [n, 3, 64]. A texel that was clipped may stay as bright in less light."""
    residual = now - _lit(before, gains)
    residual[(before >= CLIPPED) & (residual > 0)] = 0
    return residual


def _exceeds(residual: Values, limits: Values) -> Flags:
    """Return which tiles [n] have a texel [n, 3, 64] above their limits [n, 3], within those of any tile."""
    over = np.abs(residual).max(axis=2) > limits.clip(CHANGE, LARGEST_CHANGE)
    return np.asarray(over.any(axis=1))
