"""Relevance of tiles and the best of them, by compute shaders: scores, balance, blending with the past, top-k."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from arr_coc.backends.gl.buffers import StorageBuffer
from arr_coc.backends.gl.maps import CHANNEL_PLANES, Map, TileMaps
from arr_coc.backends.gl.texture import TileTexture

# Planes of the maps, as kernels/relevance.comp and kernels/best_tiles.comp have them.
SCORES = CHANNEL_PLANES
FACTOR = 18
PRIOR = 19
ORIGIN = 22
PAST = (24, 32)
"""Blended relevance, output and looks of the frame before, and of this one: they take turns."""
SHOWN = 40
STALENESS = 41
PLANES = 43

_WHOLE = ("balancer", "width", "scored", "fresh", "moved", "taught", "weighed", "past", "next")
_SETTINGS = ("renewal", "band", "settled", "weak", "odds_limit", "alone", "faint", "looked_away", "looked_at")
_RECALL = ("sure", "tiny", "recall_attention", "recall_similarity")
_FLOATS = ("kept", *_SETTINGS, *_RECALL)
FRAME = np.dtype([(name, np.int32) for name in _WHOLE] + [(name, np.float32) for name in _FLOATS])
"""The buffer `Frame` of kernels/relevance.comp."""

_COUNTS = ("relevance", "best", "neglected", "sticky")
CHOICE = np.dtype([(name, np.int32) for name in _COUNTS] + [(name, np.float32) for name in ("dull", "stickiness")])
"""The buffer `Choice` of kernels/best_tiles.comp."""


class GlRelevance:
    """Relevance of the frames of one texture, which stays on the device; used by one thread."""

    def __init__(self, texture: TileTexture, weights: Map, settings: Mapping[str, float]) -> None:
        """Raise DeviceLost if the device lacks the memory.

        Args:
            texture: The texture.
            weights: Of the scorers and, from `balancer` on, of the balancer, float32 [n]; see kernels/tile_scores.comp.
            settings: Numbers of the buffers `Frame` and `Choice` that are the same for all frames, by name.
        """
        self.texture = texture
        self._device = texture.device
        tiles = texture.shape[0] * texture.shape[1]
        self._frame = np.zeros((), FRAME)
        self._choice = np.zeros((), CHOICE)
        for name, value in settings.items():
            if name in (*_WHOLE, *_FLOATS):
                self._frame[name] = value
            else:
                self._choice[name] = value
        self._past, self._next = PAST
        self._maps = TileMaps(texture, PLANES)
        with self._device.current():
            self._weights = StorageBuffer(self._device, weights.nbytes)
            self._weights.write(weights)
            self._frame_buffer = StorageBuffer(self._device, FRAME.itemsize)
            self._choice_buffer = StorageBuffer(self._device, CHOICE.itemsize)
            self._chosen = StorageBuffer(self._device, 8 * tiles)

    def step(
        self,
        *,
        new_picture: bool,
        fresh: bool,
        kept: float,
        prior: Map | None = None,
        factor: Map | None = None,
        origin: Map | None = None,
    ) -> None:
        """Start the kernels that score the frame in the texture, and blend it with the past.

        Args:
            new_picture: False if the texture is as it was at the last step.
            fresh: Whether there is no past.
            kept: The past's share of a tile that looks the same.
            prior: Attention, similarity and trust, [3, gh, gw]; None for none.
            factor: Of each tile's relevance, [gh, gw]; None for 1.
            origin: Row and column of each tile in the frame before, [2, gh, gw]; None: nothing moved.

        Raises:
            DeviceLost: The device failed.
        """
        maps = self._maps
        with self._device.current(), self.texture.drawing():
            if new_picture:
                maps.fill_channels()
                rows, cols = self.texture.shape
                maps.run("tile_scores", (-(-cols // 8), -(-rows // 8)), self._weights)
            inputs = (("taught", PRIOR, prior), ("weighed", FACTOR, factor), ("moved", ORIGIN, origin))
            for flag, plane, values in inputs:
                self._frame[flag] = values is not None
                if values is not None:
                    maps.put(plane, values)
            self._past, self._next = self._next, self._past
            self._frame["past"], self._frame["next"] = self._past, self._next
            self._frame["scored"], self._frame["fresh"], self._frame["kept"] = not new_picture, fresh, kept
            self._frame_buffer.write(self._frame)
            maps.run("relevance", (1, 1), self._weights, self._frame_buffer)
            self._device.check("scoring a frame")

    def best_tiles(
        self, best: int, neglected: int, shown: Map | None, staleness: Map | None
    ) -> tuple[npt.NDArray[np.int64], Map]:
        """Return tiles of the newest frame, by index, and the relevance of each: [best + neglected] each.

        Args:
            best: How many of most relevance.
            neglected: How many of most staleness, of the others.
            shown: 1 for tiles that were shown before, [gh, gw], which count for more; None if nothing was.
            staleness: [gh, gw], if any are `neglected`.

        Raises:
            DeviceLost: The device failed.
        """
        chosen = np.empty((best + neglected, 2), np.uint32)
        choice = self._choice
        choice["relevance"], choice["best"], choice["neglected"] = self._next + 1, best, neglected
        choice["sticky"] = shown is not None
        with self._device.current():
            for plane, values in ((SHOWN, shown), (STALENESS, staleness)):
                if values is not None:
                    self._maps.put(plane, values)
            self._choice_buffer.write(choice)
            self._maps.run("best_tiles", (1, 1), self._chosen, self._choice_buffer)
            self._chosen.read(chosen, 0, "choosing tiles")
        return chosen[:, 0].astype(np.int64), np.ascontiguousarray(chosen[:, 1]).view(np.float32)

    def read(self) -> Map:
        """Return the newest frame's three scores, its relevance, and that as it is blended: float32 [5, gh, gw].

        Raises DeviceLost.
        """
        return np.concatenate([self._maps.read(SCORES, 4), self._maps.read(self._next + 1, 1)])
