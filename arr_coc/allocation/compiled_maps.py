"""`CompiledMaps`: maps of tiles over time by the compiled kernel, and the choice between it and the reference."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.ops.kernels import ArrayPool
from arr_coc.relevance.kernel import kernel_or_none

Map = npt.NDArray[np.float32]

_POINTER, _INT, _FLOAT, _DOUBLE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_double
_GRID = (_INT, _INT)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "maps_nearest": (None, (*_GRID, _POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER)),
    "maps_then": (None, (*_GRID, *(_POINTER,) * 4, _FLOAT, _FLOAT, *(_POINTER,) * 3)),
    "maps_steps": (_INT, (*_GRID, _POINTER, _FLOAT, _FLOAT, *(_POINTER,) * 4)),
    "maps_blend": (_INT, (*_GRID, *(_POINTER,) * 6, _INT, _FLOAT, _FLOAT, _FLOAT, *(_POINTER,) * 4)),
    "maps_recall": (None, (*_GRID, *(_POINTER,) * 6, _INT, _DOUBLE, _FLOAT, _DOUBLE, *(_POINTER,) * 2)),
    "maps_drift": (_INT, (*_GRID, _POINTER, _POINTER, _FLOAT, _POINTER)),
    "maps_changed": (_DOUBLE, (*_GRID, *(_POINTER,) * 3)),
}


class CompiledMaps:
    """Maps of one stream by the compiled kernel, in arrays of a pool; used by one thread.

    Methods give what `arr_coc.allocation.warping` and `arr_coc.allocation.temporal` give without them, but for rounding
    (below 1e-6). Maps are float32 [gh, gw], contiguous, in host memory; `origin` [2, gh, gw] is that of a `Warp`. The
    kernel keeps the interpreter's lock, because a call takes less time than another thread's turn.
    """

    def __init__(self, kernel: ctypes.CDLL, arrays: ArrayPool) -> None:
        self.arrays = arrays
        library = ctypes.PyDLL(kernel._name, handle=kernel._handle)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library
        self._largest = ctypes.c_float()
        self._largest_at = ctypes.byref(self._largest)

    def nearest(self, origin: Map, values: torch.Tensor, entering: float) -> torch.Tensor:
        """See `Warp.nearest`; of values of 1, 4 or 8 bytes."""
        rows, cols = origin.shape[1:]
        maps, taken, other = values.contiguous(), torch.empty_like(values), torch.tensor(entering, dtype=values.dtype)
        count, size = maps.numel() // (rows * cols), maps.element_size()
        at = self.arrays.address(origin), maps.data_ptr(), count, size, other.data_ptr(), taken.data_ptr()
        self._library.maps_nearest(rows, cols, *at)
        return taken

    def then(self, older: tuple[Map, Map], newer: tuple[Map, Map], apart_tiles: float, near_tiles: float) -> Map:
        """The origin of one warp and another one after it, each by origin and newest motion; see `Warp.then`."""
        rows, cols = older[0].shape[1:]
        origin = self.arrays.take(older[0].shape)
        way, marked = self.arrays.take(older[0].shape), self.arrays.take((rows, cols), np.uint8)
        at = self.arrays.address
        self._library.maps_then(
            rows, cols, *map(at, (*older, *newer)), apart_tiles, near_tiles, at(way), at(marked), at(origin)
        )
        return origin

    def whole_steps(self, origin: Map, left: Map, at_tiles: float, with_tiles: float) -> Map | None:
        """Add a frame's motion to what is `left` [2, gh, gw], in place, and take what is due in whole tiles: float32
        [2, gh, gw], None where nothing is; see `WholeTileSteps.step`."""
        rows, cols = origin.shape[1:]
        whole, queue = self.arrays.take(origin.shape), self.arrays.take((rows, cols), np.int32)
        due, at = self.arrays.take((rows, cols), np.uint8), self.arrays.address
        found = self._library.maps_steps(
            rows, cols, at(origin), at_tiles, with_tiles, at(left), at(whole), at(queue), at(due)
        )
        return whole if found else None

    def blend(
        self,
        origin: Map | None,
        past: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        current: torch.Tensor,
        looks: torch.Tensor,
        limits: tuple[float, float, float],
    ) -> tuple[torch.Tensor, torch.Tensor | None, float]:
        """A frame's map blended with the `past`: what was blended, what was held, how tiles looked [C, gh, gw].

        The last map of `looks`, entropy, does not count.

        `limits`: the past's share, by how much a tile's looks renew it, and the dead band. Returns the blended map, the
        held one, or None where it stays as it is, and how far blended is from `current` at most.
        """
        rows, cols = current.shape
        count, take = len(looks) - 1, self._take
        blended, held, scratch = take(rows, cols), take(rows, cols), take(count + 1, rows, cols)
        places = (*past, current, looks)
        moved = self._library.maps_blend(
            *(rows, cols, self._at(origin), *(one.data_ptr() for one in places), count, *limits),
            *(scratch.data_ptr(), blended.data_ptr(), held.data_ptr(), self._largest_at),
        )
        return blended, held if moved or origin is not None else None, self._largest.value

    def recall(
        self,
        origin: Map | None,
        learned: tuple[torch.Tensor, ...],
        looks: torch.Tensor,
        now_ns: int,
        limits: tuple[float, float],
    ) -> torch.Tensor:
        """Attention, similarity and trust [3, gh, gw] at a time; see `FeedbackPrior.evaluate`.

        `learned`: what is known [2, gh, gw], when it was learned (float64), how sure, and how tiles looked [C, gh, gw].
        `limits`: by how much a tile's looks renew it, and the time in seconds in which trust fades.
        """
        count, rows, cols = looks.shape
        prior, scratch = self._take(3, rows, cols), self._take(count + 1, rows, cols)
        places = (*learned, looks)
        self._library.maps_recall(
            *(rows, cols, self._at(origin), *(one.data_ptr() for one in places), count, now_ns, *limits),
            *(scratch.data_ptr(), prior.data_ptr()),
        )
        return prior

    def drift(self, values: torch.Tensor, kept: torch.Tensor, band: float) -> torch.Tensor | None:
        """`kept`, with the `values` that are farther from it than `band`, or unlike any; None where there are none."""
        rows, cols = values.shape
        moved = self._take(rows, cols)
        places = values.data_ptr(), kept.data_ptr(), band, moved.data_ptr()
        return moved if self._library.maps_drift(rows, cols, *places) else None

    def changed_share(
        self, marked: npt.NDArray[np.int64], versions: npt.NDArray[np.int64], relevance: torch.Tensor
    ) -> float:
        """Share of relevance on tiles whose version is another than the `marked` one; see `ChangeMeter.measure`."""
        at = self.arrays.address
        return float(self._library.maps_changed(*relevance.shape, at(marked), at(versions), relevance.data_ptr()))

    def _take(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.arrays.take(shape))

    def _at(self, origin: Map | None) -> int | None:
        return None if origin is None else self.arrays.address(origin)


def maps_or_none(arrays: ArrayPool | None = None) -> CompiledMaps | None:
    """Maps by the compiled kernel, in arrays of a stream's pool; None where the reference is used. Raises as
    `kernel_or_none`."""
    kernel = kernel_or_none()
    return None if kernel is None else CompiledMaps(kernel, arrays or ArrayPool())
