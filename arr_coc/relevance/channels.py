"""Texture arrays: tile-local and frame-wide channels, cached by version.

Tile-local quantities are sums of whole numbers, exact in float32: computing a few tiles gives the same bits as
computing all of them. Edges and the histogram look at level 1 (256 texels a tile), on which sensor noise is halved and
strokes of text remain; colour variance looks at level 2.

Profile `core13`, all from 8-bit RGB:

| channel | content | range | from |
| --- | --- | --- | --- |
| 0, 1, 2 | red, green, blue | [0, 1] | level 5 |
| 3, 4 | row, column: 0 at the first, 1 at the last | [0, 1] | the grid |
| 5, 6 | Sobel gx, gy of luma, mean over the tile | [−1, 1] | level 1, halo of one texel |
| 7 | Sobel magnitude, mean over the tile | [0, 1] | level 1, halo of one texel |
| 8, 9, 10 | centre–surround saliency of intensity, red–green, blue–yellow | [0, 1] | levels 4 and 5 |
| 11 | colour variance inside the tile, times 4 | [0, 1] | level 2 |
| 12 | distance to the nearest of the frame's four colour clusters | [0, 1] | level 5 |

Beside the channels stands `entropy`: Shannon entropy of the tile's 16-bin luma histogram at level 1, divided by log
16. `arr_coc.relevance.full40` has the table of the profiles `full40` and `full40+text`.

Gradients are cv2's: kornia's give the same numbers, and take many times as long on a CPU (benchmarks/README.md).
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import cv2
import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import as_strided
from torch.nn import functional as F

from arr_coc.errors import NonFiniteError, ShapeError
from arr_coc.relevance.kernel import kernel_or_none
from arr_coc.relevance.profiles import (
    CLUSTER_START,
    CLUSTER_STEPS,
    CORE,
    EDGES,
    FULL,
    GRADIENTS,
    LUMA_SIDE,
    MAGNITUDE,
    RGB,
    SALIENCY,
    TEXT_PROFILE,
    channel_count,
)
from arr_coc.texture.kernels import ArrayPool
from arr_coc.texture.pictures import check_tensor
from arr_coc.types import LEVELS, TILE_PX, TileVersions

if TYPE_CHECKING:
    from arr_coc.relevance.full40 import LumaDetail

COLOUR_SIDE = TILE_PX >> 2
HISTOGRAM_BINS = 16

SURROUND_TILES = (5, 11)

_SOBEL_LARGEST = 4 * 255
_TEXELS = LUMA_SIDE * LUMA_SIDE
_FIXED_POINT = 1 << 20
_COUNTS = np.arange(_TEXELS + 1)
_COUNT_LOG = np.rint(_COUNTS * np.log2(np.maximum(_COUNTS, 1)) * _FIXED_POINT).astype(np.int64)
_ENTROPY_SCALE = float(_TEXELS * np.log2(HISTOGRAM_BINS) * _FIXED_POINT)
_VARIANCE_SCALE = 4 / 3 / 255**2
_CUBE_DIAGONAL = 255 * np.sqrt(3)

_OPPONENTS = np.array([[1 / 3, 1 / 3, 1 / 3], [1, -1, 0], [-0.5, -0.5, 1]], np.float32) / 255

Image = npt.NDArray[np.uint8]
Maps = npt.NDArray[np.float32]

KERNEL_LEVELS = 1, 2, 4, 5
"""Mipmap levels that the kernel reads."""

WIDE = 8
"""Colours that the kernel takes together, as kernels/scores.h has it."""


class KernelPicture(ctypes.Structure):
    """`Picture` of kernels/scores.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "cols", "steps")),
        *((name, ctypes.c_void_p) for name in ("level1", "level2", "level4", "level5", "stale")),
        *((name, ctypes.c_void_p) for name in ("luma", "sums", "lines", "colours", "channels", "entropy")),
        *((name, ctypes.c_void_p) for name in ("count_log", "centres")),
        ("entropy_scale", ctypes.c_double),
        *((name, ctypes.c_float) for name in ("variance_scale", "magnitude_scale", "diagonal")),
    )


@dataclass(frozen=True, slots=True)
class ChannelScales:
    """Constants of `arr_coc.relevance.channels`: n·log n by n, and what channels are divided by or multiplied with."""

    count_log: npt.NDArray[np.int64]
    entropy: float
    variance: float
    magnitude: float
    diagonal: float


class CompiledChannels:
    """Channels of one grid's pictures, brought up to date tile by tile.

    They are those of `arr_coc.relevance.channels`: bit for bit, but for saliency, which rounding may move by 1e-6.
    """

    def __init__(self, kernel: ctypes.CDLL, coordinates: Maps, scales: ChannelScales, arrays: ArrayPool) -> None:
        """`coordinates` [2, gh, gw]."""
        self.shape = rows, cols = coordinates.shape[1:]
        self._kernel = kernel
        self._arrays = arrays
        self._planes = np.zeros((CORE + 1, rows, cols), np.float32)
        self._planes[3:5] = coordinates
        buffers: dict[str, npt.NDArray[Any]] = {
            "luma": np.zeros((rows * LUMA_SIDE + 2, cols * LUMA_SIDE + 2), np.uint8),
            "sums": np.zeros((9, rows, cols), np.int32),
            "lines": np.zeros((18, cols), np.float32),
            "colours": np.zeros((3, -(-rows * cols // WIDE) * WIDE)),
            "channels": self._planes,
            "entropy": self._planes[CORE],
            "count_log": scales.count_log,
            "centres": CLUSTER_START,
        }
        self._buffers = buffers
        self._picture = KernelPicture(rows, cols, CLUSTER_STEPS)
        for name, buffer in buffers.items():
            setattr(self._picture, name, buffer.ctypes.data)
        self._picture.entropy_scale = scales.entropy
        self._picture.variance_scale, self._picture.magnitude_scale = scales.variance, scales.magnitude
        self._picture.diagonal = scales.diagonal

    def update(self, levels: Sequence[npt.NDArray[np.uint8]], stale: npt.NDArray[np.bool_]) -> Maps:
        """Return the channels of a picture, and behind them its entropy: float32 [14, gh, gw]; from its
        `KERNEL_LEVELS`, which differ from the picture before on the tiles `stale` bool [gh, gw]."""
        keep = [np.ascontiguousarray(level) for level in levels]
        keep.append(np.ascontiguousarray(stale))
        for name, array in zip(("level1", "level2", "level4", "level5", "stale"), keep, strict=True):
            setattr(self._picture, name, array.ctypes.data)
        self._kernel.scores_channels(ctypes.byref(self._picture))
        return self._arrays.copy(self._planes)


_SCALES = ChannelScales(_COUNT_LOG, _ENTROPY_SCALE, _VARIANCE_SCALE, _SOBEL_LARGEST * np.sqrt(2), _CUBE_DIAGONAL)


def _tile_means(image: npt.NDArray[Any], rows: int, cols: int) -> Maps:
    """Means over the cells of an image [rows·s, cols·s(, c)] of whole numbers: float32 [rows, cols(, c)]."""
    return cv2.resize(image.astype(np.float32, copy=False), (cols, rows), interpolation=cv2.INTER_AREA)


def edge_means(blocks: Image) -> Maps:
    """Sobel gx, gy in [−1, 1] and magnitude in [0, 1], averaged over tiles.

    `blocks` uint8 [n, h + 2, w + 2] luma with a halo of one texel, h and w multiples of 16; returns float32
    [3, n·h/16, w/16].
    """
    count, height, width = blocks.shape
    image = blocks.reshape(count * height, width)
    gx, gy = (cv2.Sobel(image, cv2.CV_32F, *axes) for axes in ((1, 0), (0, 1)))
    magnitude = cv2.magnitude(gx, gy)
    np.rint(magnitude, out=magnitude)
    inner_height = height - 2
    inner_width = width - 2
    means = []
    for edges, largest in ((gx, _SOBEL_LARGEST), (gy, _SOBEL_LARGEST), (magnitude, _SOBEL_LARGEST * np.sqrt(2))):
        inner = edges.reshape(blocks.shape)[:, 1:-1, 1:-1].reshape(count * inner_height, inner_width)
        rows = count * inner_height // LUMA_SIDE
        cols = inner_width // LUMA_SIDE
        means.append(_tile_means(inner, rows, cols) / np.float32(largest))
    return np.stack(means)


def luma_entropy(tiles: Image) -> Maps:
    """Shannon entropy of each tile's 16-bin luma histogram, divided by log 16: exactly 0 for a flat tile.

    Of two histograms whose bins lie half a bin apart the smaller entropy counts, because a nearly flat tile whose
    luma lies at a bin's border would otherwise flicker with the noise. `tiles` uint8 [n, 16, 16] luma; returns
    float32 [n].
    """
    count = len(tiles)
    half_bins = 2 * HISTOGRAM_BINS
    bins = np.add(tiles.reshape(count, -1) >> 3, (np.arange(count) * half_bins)[:, None], dtype=np.intp)
    halves = np.bincount(bins.ravel(), minlength=count * half_bins).reshape(count, half_bins)
    aligned = _COUNT_LOG[halves[:, 0::2] + halves[:, 1::2]].sum(axis=1)
    shifted = _COUNT_LOG[halves[:, 1:-1:2] + halves[:, 2::2]].sum(axis=1)
    shifted += _COUNT_LOG[halves[:, 0]] + _COUNT_LOG[halves[:, -1]]
    bits = _COUNT_LOG[_TEXELS] - np.maximum(aligned, shifted)
    return (bits / _ENTROPY_SCALE).astype(np.float32)


def colour_variance(tiles: Image) -> Maps:
    """Variance of colour inside each tile, mean of the three primaries, times 4 (so in [0, 1]).

    `tiles` uint8 [n, 8, 8, 3]; returns float32 [n].
    """
    count = len(tiles)
    texels = tiles.reshape(count * COLOUR_SIDE, COLOUR_SIDE, 3).astype(np.float32)
    mean = _tile_means(texels, count, 1)
    square = _tile_means(np.square(texels), count, 1)
    variance = (square - np.square(mean)).reshape(count, 3)
    return np.maximum((variance[:, 0] + variance[:, 1] + variance[:, 2]) * np.float32(_VARIANCE_SCALE), 0)


def centre_surround(fine: Image, coarse: Image) -> Maps:
    """Centre–surround differences of intensity, red–green and blue–yellow (Itti, Koch & Niebur, 1998), in [0, 1].

    The centres are the four texels of level 4 in a tile, `fine` uint8 [2·gh, 2·gw, 3]; the surrounds are means over
    5 and 11 tiles of level 5, `coarse` uint8 [gh, gw, 3]. Largest of the four, mean of the two, not normalised by the
    frame. Returns float32 [3, gh, gw].
    """
    centre = cv2.transform(fine.astype(np.float32), _OPPONENTS)
    base = cv2.transform(coarse.astype(np.float32), _OPPONENTS)
    high = _extreme(centre, np.maximum)
    low = _extreme(centre, np.minimum)
    saliency = np.zeros_like(base)
    for side in SURROUND_TILES:
        surround = cv2.blur(base, (side, side), borderType=cv2.BORDER_REPLICATE)
        saliency += np.maximum(high - surround, surround - low)
    return np.clip(saliency.transpose(2, 0, 1) / len(SURROUND_TILES), 0, 1)


def _extreme(image: Maps, pick: np.ufunc) -> Maps:
    """Return the largest or smallest of 2×2 texels: [2·gh, 2·gw, 3] → [gh, gw, 3]."""
    rows = pick(image[0::2], image[1::2])
    return pick(rows[:, 0::2], rows[:, 1::2])


def cluster_distance(coarse: Image) -> Maps:
    """Return the distance of each tile's colour to the nearest of the frame's four colour clusters, divided by the
    cube's diagonal.

    k-means over level 5 (`coarse` uint8 [gh, gw, 3]) from a fixed start in a fixed number of steps; a cluster that
    has no members keeps its centre. Returns float32 [gh, gw] in [0, 1].
    """
    points = coarse.reshape(-1, 3).T.astype(np.float64)
    centres = CLUSTER_START
    for _ in range(CLUSTER_STEPS):
        nearness = _nearness(points, centres)
        members = (nearness == nearness.max(axis=0)).astype(np.float64)
        counts = members.sum(axis=1, keepdims=True)
        sums = (members @ points.T).astype(np.float32)
        centres = np.where(counts > 0, sums / np.maximum(counts, 1).astype(np.float32), centres)
    squared = np.square(points).sum(axis=0) - _nearness(points, centres).max(axis=0)
    distances = np.sqrt(np.maximum(squared, 0).astype(np.float32))
    return (distances / np.float32(_CUBE_DIAGONAL)).reshape(coarse.shape[:2])


def _nearness(points: npt.NDArray[np.float64], centres: Maps) -> npt.NDArray[np.float64]:
    """Return each point's own square less its squared distance to each centre: [clusters, points], of points [3,
    points].

    Products are exact, and added in this order wherever it is computed: equally near stays so.
    """
    exact = centres.astype(np.float64)
    red, green, blue = (2 * exact[:, axis, None] * points[axis] for axis in range(3))
    return red + green + blue - (exact[:, :1] ** 2 + exact[:, 1:2] ** 2 + exact[:, 2:] ** 2)


_WHOLE_FRAME_SHARE = 0.3
"""From this share of stale tiles on, computing the whole frame is cheaper than picking tiles out."""


class MipLevels(Protocol):
    """The part of a texture view that channels need."""

    @property
    def versions(self) -> TileVersions: ...

    def read(self, level: int) -> npt.NDArray[np.uint8]:
        """Level 0…5 of the padded picture: uint8 [H >> level, W >> level, 3]."""
        ...


@runtime_checkable
class DeviceChannels(Protocol):
    """A view whose hardware computes the channels itself."""

    def texture_array(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Channels of `core13` and entropy, as `TextureArray` holds them, on the device."""
        ...

    def luma(self) -> torch.Tensor:
        """Luma of level 1 on the device: float32 [16·gh, 16·gw] of whole numbers, 0…255."""
        ...


@dataclass(frozen=True, slots=True)
class TextureArray:
    """`channels` float32 [C, gh, gw] and `entropy` float32 [gh, gw] in [0, 1]; batched: [B, C, gh, gw] and [B, gh,
    gw]. `gradients` float32 [2, gh, gw]: Sobel gx, gy, for a profile whose channels lack them."""

    channels: torch.Tensor
    entropy: torch.Tensor
    gradients: torch.Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Shape of `channels`."""
        return self.channels.shape

    @property
    def appearance(self) -> torch.Tensor:
        """Colour and edges (gx, gy, magnitude), in which a change of content shows: [(B,) 6, gh, gw]."""
        return torch.cat(self._appearance, dim=-3)

    @property
    def looks(self) -> torch.Tensor:
        """Appearance and, last, entropy: [(B,) 7, gh, gw]."""
        return torch.cat([*self._appearance, self.entropy[..., None, :, :]], dim=-3)

    @property
    def _appearance(self) -> list[torch.Tensor]:
        colours = self.channels[..., RGB, :, :]
        if self.gradients is None:
            return [colours, self.channels[..., EDGES, :, :]]
        return [colours, self.gradients, self.channels[..., MAGNITUDE, :, :]]

    def to(self, device: torch.device) -> TextureArray:
        """Return the same on a device."""
        if self.gradients is None:
            gradients = None
        else:
            gradients = self.gradients.to(device)
        return TextureArray(self.channels.to(device), self.entropy.to(device), gradients)


class TextureArrayCache:
    """Channels computed for a texture, with the versions they were made from; one per stream, used by one thread."""

    def __init__(self, arrays: ArrayPool | None = None) -> None:
        """`arrays`: pool for the computed channels."""
        self._arrays = arrays or ArrayPool()
        self.versions: TileVersions | None = None
        self.latest: TextureArray | None = None
        self._profile = ""
        self._local = _LocalChannels(0, 0)
        self._kernel = kernel_or_none()
        self._compiled: CompiledChannels | None = None

    def stale(self, current: TileVersions, profile: str) -> npt.NDArray[np.bool_]:
        """Return the tiles for which the cache no longer holds: bool [gh, gw]."""
        if self.versions is None or profile != self._profile:
            return np.ones(current.frame.shape, dtype=bool)
        return self.versions.stale(current)

    def keep(self, versions: TileVersions, profile: str, latest: TextureArray) -> TextureArray:
        """Keep the values that were computed from these versions, and return them."""
        self.versions = TileVersions(versions.epoch, self._arrays.copy(versions.frame))
        self._profile = profile
        self.latest = latest
        return latest

    def compiled_array(self, view: MipLevels, stale: npt.NDArray[np.bool_]) -> TextureArray | None:
        """Return the texture array of `core13` by the compiled kernel, of which `stale` is made again; None without
        it."""
        kernel = self._kernel
        channels = self._compiled
        if kernel is None:
            return None
        if channels is None or channels.shape != stale.shape:
            channels = self._compiled = CompiledChannels(kernel, _coordinates(*stale.shape), _SCALES, self._arrays)
        planes = torch.from_numpy(channels.update([view.read(level) for level in KERNEL_LEVELS], stale))
        return TextureArray(planes[:CORE], planes[CORE])

    def local_channels(self, view: MipLevels, stale: npt.NDArray[np.bool_], profile: str) -> _LocalChannels:
        """Return the tile-local channels, updated on stale tiles.

        Args:
            view: Texture of the frame.
            stale: Tiles to compute again, bool [gh, gw]; at least one.
            profile: Name of the profile of the channels.
        """
        if self._local.channels.shape[1:] != stale.shape or self._local.profile != profile:
            rows, cols = stale.shape
            self._local = _LocalChannels(rows, cols, profile)
        self._local.update(view, stale)
        return self._local


def texture_array(view: MipLevels, profile: str = "core13", cache: TextureArrayCache | None = None) -> TextureArray:
    """Return the texture array of the frame in `view`, on the CPU; see the module's table.

    With a `cache`, tile-local channels are computed only if the tile's version moved (edges: and its eight
    neighbours), and the result is the same bit for bit; a texture that did not change gives the same object.
    Channels that need the past are 0; see `arr_coc.relevance.history.with_history`. Raises ProfileError.
    """
    channel_count(profile)
    cache = TextureArrayCache() if cache is None else cache
    stale = cache.stale(view.versions, profile)
    if cache.latest is not None and not stale.any():
        return cache.latest
    rows, cols = stale.shape
    if profile == "core13":
        compiled = cache.compiled_array(view, stale)
    else:
        compiled = None
    if compiled is not None:
        return cache.keep(view.versions, profile, compiled)
    local = cache.local_channels(view, stale, profile)
    coarse = view.read(5)
    channels = np.empty((CORE, rows, cols), np.float32)
    channels[RGB] = coarse.transpose(2, 0, 1) / np.float32(255)
    channels[3:5] = _coordinates(rows, cols)
    channels[EDGES] = local.channels[:3]
    channels[SALIENCY] = centre_surround(view.read(4), coarse)
    channels[11] = local.channels[3]
    channels[12] = cluster_distance(coarse)
    texture = TextureArray(torch.from_numpy(channels), torch.from_numpy(local.channels[4].copy()))
    if local.detail is not None:
        from arr_coc.relevance.full40 import picture_channels

        texture = TextureArray(
            picture_channels(texture.channels, local.detail), texture.entropy, texture.channels[GRADIENTS]
        )
    return cache.keep(view.versions, profile, texture)


def load_profile(profile: str) -> None:
    """Import what a profile is computed with (kornia takes half a second), before the first frame waits for it.

    Raises ProfileError.
    """
    if channel_count(profile) == FULL:
        importlib.import_module("arr_coc.relevance.full40")


def device_texture_array(view: MipLevels, profile: str, cache: TextureArrayCache) -> TextureArray:
    """Return the texture array on the device of a view that computes it there; of any other view, as `texture_array`.

    Devices round differently, so what is allocated from it is not the same on every backend.
    """
    if not isinstance(view, DeviceChannels):
        return texture_array(view, profile, cache)
    if cache.latest is not None and not cache.stale(view.versions, profile).any():
        return cache.latest
    texture = TextureArray(*view.texture_array())
    if channel_count(profile) == FULL:
        from arr_coc.relevance.full40 import LumaDetail, picture_channels

        luma = F.pad(view.luma()[None, None], (1, 1, 1, 1), mode="replicate")[:, 0]
        forty = picture_channels(texture.channels, LumaDetail.of(luma, text=profile == TEXT_PROFILE))
        texture = TextureArray(forty, texture.entropy, texture.channels[GRADIENTS])
    return cache.keep(view.versions, profile, texture)


def image_texture(images: torch.Tensor, profile: str = "core13") -> TextureArray:
    """Return the texture array of plain pictures: the same channels, batched.

    `images` [B, 3, H, W], uint8 or floating in [0, 1] (rounded to 8 bits), padded by edge replication to multiples
    of 32. Returns channels [B, C, gh, gw] and entropy [B, gh, gw] on the images' device.
    Raises ShapeError, NonFiniteError, ProfileError.
    """
    channel_count(profile)
    check_tensor(images, "images")
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
        raise ShapeError(f"images must be [B, 3, H, W], got {list(images.shape)}")
    if images.is_floating_point():
        if not torch.isfinite(images).all():
            raise NonFiniteError("images holds NaN or Inf")
        images = images.mul(255).round().clamp(0, 255).to(torch.uint8)
    elif images.dtype != torch.uint8:
        raise ShapeError(f"images must be uint8 or floating, got {images.dtype}")
    arrays = [texture_array(_Picture(image), profile) for image in images.permute(0, 2, 3, 1).cpu().numpy()]
    gradients = [array.gradients for array in arrays if array.gradients is not None]
    return TextureArray(
        torch.stack([array.channels for array in arrays]).to(images.device),
        torch.stack([array.entropy for array in arrays]).to(images.device),
        torch.stack(gradients).to(images.device) if gradients else None,
    )


@lru_cache(maxsize=16)
def _coordinates(rows: int, cols: int) -> npt.NDArray[np.float32]:
    """Row and column of every tile in [0, 1]: float32 [2, gh, gw]."""
    row = np.linspace(0, 1, rows, dtype=np.float32)
    col = np.linspace(0, 1, cols, dtype=np.float32)
    return np.stack(np.meshgrid(row, col, indexing="ij"))


class _LocalChannels:
    """Channels of one grid that depend on a tile's own texels (edges: and one around), and luma to compute them from.

    `channels` float32 [5, gh, gw]: gx, gy, magnitude, variance, entropy; `detail` what `full40` needs beside them.
    Luma uint8 of level 1 has a border of one texel, and is seen whole, by tiles [gh, gw, 16, 16], and by tiles with a
    halo [gh, gw, 18, 18].
    """

    def __init__(self, rows: int, cols: int, profile: str = "core13") -> None:
        self.profile = profile
        self.channels = np.zeros((5, rows, cols), np.float32)
        self.detail: LumaDetail | None = None
        self._luma = np.zeros((rows * LUMA_SIDE + 2, cols * LUMA_SIDE + 2), np.uint8)
        self._tiles = self._luma[1:-1, 1:-1].reshape(rows, LUMA_SIDE, cols, LUMA_SIDE).swapaxes(1, 2)
        down, right = self._luma.strides
        steps = down * LUMA_SIDE, right * LUMA_SIDE, down, right
        self._haloed = as_strided(self._luma, (rows, cols, LUMA_SIDE + 2, LUMA_SIDE + 2), steps, writeable=False)

    def update(self, view: MipLevels, stale: npt.NDArray[np.bool_]) -> None:
        """Update the channels on the tiles `stale` bool [gh, gw], which is not empty."""
        self._update_luma(view, stale)
        neighbourhood = cv2.dilate(stale.view(np.uint8), np.ones((3, 3), np.uint8)).view(bool)
        if np.count_nonzero(neighbourhood) > _WHOLE_FRAME_SHARE * neighbourhood.size:
            self.channels[:3] = edge_means(self._luma[None])
        else:
            self.channels[:3, neighbourhood] = edge_means(self._haloed[neighbourhood])[..., 0]
        rows, cols = stale.shape
        colour = view.read(2).reshape(rows, COLOUR_SIDE, cols, COLOUR_SIDE, 3).swapaxes(1, 2)
        self.channels[3, stale] = colour_variance(colour[stale])
        self.channels[4, stale] = luma_entropy(self._tiles[stale])
        if channel_count(self.profile) == FULL:
            # Laplacian, edges and strokes on the tiles `near` bool [gh, gw]
            from arr_coc.relevance.full40 import LumaDetail

            text = self.profile == TEXT_PROFILE
            if self.detail is None or np.count_nonzero(neighbourhood) > _WHOLE_FRAME_SHARE * neighbourhood.size:
                self.detail = LumaDetail.of(torch.from_numpy(self._luma[None]), text=text)
            else:
                self.detail.put(
                    torch.from_numpy(neighbourhood),
                    LumaDetail.of(torch.from_numpy(self._haloed[neighbourhood]), text=text),
                )

    def _update_luma(self, view: MipLevels, stale: npt.NDArray[np.bool_]) -> None:
        """Luma with its border replicated, over the box that holds every stale tile."""
        rows = np.flatnonzero(stale.any(axis=1))
        cols = np.flatnonzero(stale.any(axis=0))
        top = int(rows[0]) * LUMA_SIDE
        bottom = (int(rows[-1]) + 1) * LUMA_SIDE
        left = int(cols[0]) * LUMA_SIDE
        right = (int(cols[-1]) + 1) * LUMA_SIDE
        box = view.read(1)[top:bottom, left:right]
        luma = self._luma
        luma[top + 1 : bottom + 1, left + 1 : right + 1] = cv2.cvtColor(box, cv2.COLOR_RGB2GRAY)
        luma[0], luma[-1] = luma[1], luma[-2]
        luma[:, 0], luma[:, -1] = luma[:, 1], luma[:, -2]


class _Picture:
    """One picture, uint8 [H, W, 3], padded and with all its levels."""

    def __init__(self, picture: npt.NDArray[np.uint8]) -> None:
        height, width = picture.shape[:2]
        below = -height % TILE_PX
        right = -width % TILE_PX
        level = cv2.copyMakeBorder(picture, 0, below, 0, right, cv2.BORDER_REPLICATE)
        self._levels = [level]
        for _ in range(LEVELS - 1):
            half = level.shape[1] // 2, level.shape[0] // 2
            level = cv2.resize(level, half, interpolation=cv2.INTER_AREA)
            self._levels.append(level)
        self.versions = TileVersions(0, np.zeros(level.shape[:2], np.int64))

    def read(self, level: int) -> npt.NDArray[np.uint8]:
        return self._levels[level]
