"""Zones of a picture in an allocation: weights of tiles, and the tiles that a question is about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from arr_coc.texture.polygons import Polygon, covered_shares
from arr_coc.types import TileGrid


@dataclass(frozen=True, slots=True)
class ZoneOptions:
    """Zones of a stream, as polygons with corners (x, y) in shares of the picture.

    `weights`: each polygon with the factor of the relevance of its tiles, 0 or more. A tile counts by the share s that
    the polygon covers, so its factor is 1 + s·(factor − 1); those of polygons that overlap are multiplied. `focus`: the
    polygons that questions are about; none for the whole picture.
    """

    weights: tuple[tuple[Polygon, float], ...] = ()
    focus: tuple[Polygon, ...] = ()

    def maps(self) -> ZonesOnTiles:
        """Return the zones as maps, for one stream."""
        return ZonesOnTiles(self)


class ZonesOnTiles:
    """Maps of zones on the tile grids of one stream, as `ZoneMaps` of the allocator has them; used by one thread."""

    def __init__(self, options: ZoneOptions) -> None:
        self.options = options
        self._weights = lru_cache(maxsize=4)(self._make_weights)
        self._products: dict[str, tuple[torch.Tensor, TileGrid, torch.Tensor]] = {}

    def within(self, grid: TileGrid) -> torch.Tensor | None:
        """Return the tiles that questions are about, bool [rows, cols] in host memory; None for all."""
        tiles = [zone_tiles(polygon, grid) for polygon in self.options.focus]
        return torch.stack(tiles).any(dim=0) if tiles else None

    def weigh(self, values: torch.Tensor, grid: TileGrid, name: str = "relevance") -> torch.Tensor:
        """Return a map float32 [rows, cols] times the weights of its tiles, kept under `name`."""
        entry = self._products.get(name)
        if entry is None or entry[0] is not values or entry[1] != grid:
            entry = values, grid, values * self._weights(grid, values.device)
            self._products[name] = entry
        return entry[2]

    def _make_weights(self, grid: TileGrid, device: torch.device) -> torch.Tensor:
        weights = np.ones(grid.shape, np.float32)
        for polygon, factor in self.options.weights:
            weights *= 1 + covered_shares(polygon, grid) * np.float32(factor - 1)
        tensor = torch.from_numpy(weights)
        if (within := self.within(grid)) is not None:
            tensor *= within
        return tensor.to(device)


@lru_cache(maxsize=16)
def zone_tiles(polygon: Polygon, grid: TileGrid) -> torch.Tensor:
    """Return the tiles of which a polygon covers something, bool [rows, cols]; for a polygon that is too small for
    that, the tile at its first corner. Not to be written to."""
    tiles = covered_shares(polygon, grid) > 0
    if not tiles.any():
        x, y = polygon[0]
        tiles[min(int(y * grid.rows), grid.rows - 1), min(int(x * grid.cols), grid.cols - 1)] = True
    return torch.from_numpy(tiles)
