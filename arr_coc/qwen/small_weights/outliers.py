"""Channels of rows that stand out, which are multiplied in floating point (LLM.int8(), arXiv:2208.07339).

A few channels of a transformer's activations are 50 to 1,000 times as large as the rest, the same ones for most tokens.
In 8 bits with one scale for a row they leave nothing of the rest. Their weights matter as much: what an ordinary weight
loses to rounding counts as often as its channel is larger. Therefore a product leaves these channels out, and adds them
by weights as the checkpoint has them (AWQ, arXiv:2306.00978, keeps such weights, too). They are read from its files
when channels first stand out by so much that this matters, and kept. Less comes with every token from products of
gates: to read the weights would take longer than all of a layer's work for it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from arr_coc.qwen.small_weights.kernel import KernelColumns, PackedWeights, find_outliers
from arr_coc.qwen.weight_files import EMBEDDINGS, weight_files

RATIO = 12.0
"""A value stands out if it is larger by this than its row is on average. Ordinary rows in 8 bits lose 2 % to the
rounding of one that reaches so far; of 10^5 normally distributed numbers the largest is 6 times the mean size."""

LOST = 0.5
"""Channels that stand out do without weights of the checkpoint if the sum of their squares is at most this, relative to
that of the rest: what the small weights are off by is then at most 1.22 times as much."""

SHARE = 64
"""One channel in so many is taken out of a product at most, and kept by a layer."""

LEAST = 8
"""Number of channels that are taken out of narrow layers at most."""

RENAMED = (("model.language_model.", "model."), ("model.visual.", "visual."))
"""Beginnings of names in a model, and what older checkpoints have in their place."""

OUTPUT = "lm_head.weight"


def most_channels(inputs: int) -> int:
    """Return the largest number of channels that are taken out of rows [N, inputs]."""
    return max(LEAST, inputs // SHARE)


@dataclass(frozen=True, slots=True)
class CheckpointWeight:
    """The weight of a layer in a file of a checkpoint: `key` its name there, `changed_ns` when the file was written."""

    path: Path
    key: str
    changed_ns: int

    def read(self, channels: list[int], shape: tuple[int, int]) -> torch.Tensor | None:
        """Return columns of a weight of this shape [outputs, inputs] as float32 [K, outputs]; None if the file is no
        longer that one, or holds another shape."""
        try:
            if self.path.stat().st_mtime_ns != self.changed_ns:
                return None
            with safe_open(self.path, "pt") as file:
                weight = file.get_tensor(self.key)
                if tuple(weight.shape) != shape:
                    return None
                return weight[:, channels].t().float()
        except (OSError, SafetensorError):
            return None


def checkpoint_weights(folder: Path, names: Iterable[str]) -> dict[str, CheckpointWeight]:
    """Return where the weights of a model lie in its folder, by their names in the model; unknown names are left
    out."""
    places = dict[str, CheckpointWeight]()
    for path in weight_files(folder, folder.name):
        changed_ns = path.stat().st_mtime_ns
        with safe_open(path, "pt") as file:
            places |= {key: CheckpointWeight(path, key, changed_ns) for key in file.keys()}  # noqa: SIM118
    tied = [key for key in places if key.endswith(EMBEDDINGS)]
    found = {}
    for name in names:
        older = [old + name.removeprefix(new) for new, old in RENAMED if name.startswith(new)]
        for key in (name, *older, *(tied if name == OUTPUT else ())):
            if key in places:
                found[name] = places[key]
                break
    return found


class OutlierColumns:
    """Weights of channels that stood out in a layer: from the checkpoint, as long as there is room; others, and those
    of a layer without a `source`, are expanded from the small weights each time."""

    def __init__(
        self,
        shape: tuple[int, int],
        kernel: ctypes.CDLL | None,
        weights: PackedWeights | Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Make it with no column kept.

        Args:
            shape: Outputs and inputs.
            kernel: The compiled kernel, if it is used.
            weights: The small weights; if torch multiplies them, what expands the columns int64 [K] to float32
                [K, outputs].
        """
        outputs, inputs = shape
        self.source: CheckpointWeight | None = None
        """Where the layer's weight lies, set when the model is whole."""
        self._kernel = kernel
        self._shape = shape
        self._weights = weights
        self._most = most_channels(inputs)
        self._lock = threading.Lock()
        self._channels = set[int]()
        self._places = torch.full((inputs,), -1)
        # pages that are not written take no memory
        self._kept = torch.empty(self._most, outputs)
        address = weights.address if isinstance(weights, PackedWeights) else None
        self._columns = KernelColumns(inputs, outputs, self._places.data_ptr(), self._kept.data_ptr(), address)
        self._address = ctypes.addressof(self._columns)

    def find(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the channels that stand out in contiguous rows float32 [N, inputs], in order: int64 [K]. If there are
        too many, those with the largest sum of squares, relative to each row."""
        if self._kernel is not None:
            return find_outliers(self._kernel, rows, RATIO, self._most)
        return _find(rows, self._most)

    def add(self, rows: torch.Tensor, channels: torch.Tensor, output: torch.Tensor) -> None:
        """Add the products of these channels of the rows to the output float32 [N, outputs]."""
        if self.source is not None and len(self._channels) < self._most and self._are_missed(rows, channels):
            with self._lock:
                self._read(channels.tolist())
        if self._kernel is None or not isinstance(self._weights, PackedWeights):
            output.addmm_(rows.index_select(1, channels), self._of(channels))
        else:
            self._kernel.linear_add(
                *(self._address, rows.data_ptr(), len(rows)), *(channels.data_ptr(), len(channels), output.data_ptr())
            )

    def _of(self, channels: torch.Tensor) -> torch.Tensor:
        """Return the weights of these channels, float32 [K, outputs]."""
        places = self._places[channels]
        columns = self._kept[places]
        missing = (places < 0).nonzero()[:, 0]
        if len(missing):
            assert not isinstance(self._weights, PackedWeights)
            columns[missing] = self._weights(channels[missing])
        return columns

    def _are_missed(self, rows: torch.Tensor, channels: torch.Tensor) -> bool:
        """Return True if the weights of these channels, as far as they are not kept, matter for one of the rows."""
        unread = self._places[channels] < 0
        if not unread.any():
            return False
        squares = rows[:, channels].square_()
        rest = torch.linalg.vector_norm(rows, dim=1).square_() - squares.sum(dim=1)
        return bool((squares[:, unread].sum(dim=1) > LOST * rest).any())

    def _read(self, channels: list[int]) -> None:
        """Keep those of these channels that are new, as far as there is room."""
        count = len(self._channels)
        new = [channel for channel in channels if channel not in self._channels][: self._most - count]
        if not new or self.source is None:
            return
        columns = self.source.read(new, self._shape)
        if columns is None:
            self.source = None
            return
        self._kept[count : count + len(new)] = columns
        self._places[new] = torch.arange(count, count + len(new))
        self._channels.update(new)


def _find(rows: torch.Tensor, most: int) -> torch.Tensor:
    """As `OutlierColumns.find`, without the kernel."""
    sizes = rows.abs()
    largest = sizes.amax(dim=1, keepdim=True)
    limits = RATIO * sizes.mean(dim=1, keepdim=True)
    # What stands out counts as the limit from here on, so that many such values do not hide smaller ones.
    for _ in range(2):
        limits = RATIO * sizes.minimum(limits).mean(dim=1, keepdim=True)
    squares = (sizes / limits).square_()
    # a row of zeros, and one with NaN or infinity, has none
    sums = squares.masked_fill_(~(squares > 1) | ~(largest > limits), 0).sum(dim=0)
    count = min(most, int(sums.count_nonzero()))
    return sums.argsort(descending=True, stable=True)[:count].sort().values
