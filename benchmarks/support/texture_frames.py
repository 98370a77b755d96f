"""Frames with a known change; peers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Protocol

import av
import cv2
import numpy as np
import numpy.typing as npt
import torch
from av.video.reformatter import ColorRange, Colorspace

from arr_coc.errors import StoreError
from arr_coc.types import LEVELS, TILE_PX, Colour, FramePlanes, TileGrid
from stream.extensions.doctor.gpu.driver_mipmaps import GenerateMipmap

SIZES = {"720p": TileGrid.of(720, 1280), "1080p": TileGrid.of(1080, 1920), "4K": TileGrid.of(2160, 3840)}

PICTURES = 4
"""Frames that take turns: more than a core's own cache holds, as from a decoder's pool."""

Mask = npt.NDArray[np.bool_]
Plane = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TextureCase:
    """Difference of two frames, and the targets: how many times faster than the swscale peer, in how many times what
    reading both frames takes."""

    share: float
    scattered: bool = False
    noise: float = 0.0
    target_ratio: float | None = None
    target_reads: float | None = None

    @property
    def name(self) -> str:
        spread = "" if self.share in (0, 1) else ", scattered" if self.scattered else ", one block"
        return f"{100 * self.share:g} %{spread}{', noise' if self.noise else ''}"


CASES = (
    TextureCase(0.0, target_reads=1.15),
    TextureCase(0.01),
    TextureCase(0.01, scattered=True),
    TextureCase(0.10, target_ratio=4),
    TextureCase(0.10, scattered=True, target_ratio=3),
    TextureCase(0.50),
    TextureCase(0.50, scattered=True),
    TextureCase(1.0, target_ratio=1.2),
)

NOISY = (TextureCase(0.0, noise=2.0), TextureCase(0.10, noise=2.0))
"""At 1080p too."""


def changing_tiles(case: TextureCase, grid: TileGrid) -> Mask:
    """Tiles that differ between one frame and the next: bool [rows, cols]."""
    count = round(case.share * grid.tiles)
    mask = np.zeros(grid.shape, bool)
    if case.scattered:
        mask.flat[np.random.default_rng(0).permutation(grid.tiles)[:count]] = True
    elif count:
        rows = min(grid.rows, round((count * grid.rows / grid.cols) ** 0.5))
        cols = min(grid.cols, round(count / rows))
        top, left = (grid.rows - rows) // 2, (grid.cols - cols) // 2
        mask[top : top + rows, left : left + cols] = True
    return mask


def make_frames(case: TextureCase, grid: TileGrid) -> list[av.VideoFrame]:
    """A still picture of clutter, in which the changing tiles alternate between two brightnesses."""
    rng = np.random.default_rng(1)
    tiles = changing_tiles(case, grid)
    frames = []
    for index in range(PICTURES):
        frame = av.VideoFrame(grid.width_px, grid.height_px, "yuv420p")
        frame.colorspace, frame.color_range = Colorspace.ITU709, ColorRange.MPEG
        for number, target in enumerate(frame.planes):
            down = 1 if number == 0 else 2
            plane = _clutter(grid.height_px // down, grid.width_px // down, number).copy()
            mask = tiles.repeat(TILE_PX // down, axis=0).repeat(TILE_PX // down, axis=1)
            plane += 24 * (index % 2) * mask[: plane.shape[0], : plane.shape[1]]
            if case.noise:
                plane += rng.normal(0, case.noise, plane.shape)
            samples = np.frombuffer(target, np.uint8).reshape(-1, target.line_size)
            samples[:, : plane.shape[1]] = np.clip(np.rint(plane), 0, 255)
        frames.append(frame)
    return frames


@lru_cache(None)
def _clutter(height: int, width: int, seed: int) -> npt.NDArray[np.float32]:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width)).astype(np.float32)
    clutter: Any = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 4), None, 40, 200, cv2.NORM_MINMAX)
    return clutter


def planes_of(frame: av.VideoFrame) -> FramePlanes:
    """As a decoder gives them: 4:2:0."""
    planes = tuple(
        np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]
        for plane in frame.planes
    )
    return FramePlanes("yuv", planes, Colour("bt709"), owner=frame)


def rgb_of(frame: av.VideoFrame) -> FramePlanes:
    """Converted already, so that only upload and mipmaps are left of an update."""
    return FramePlanes("rgb", (frame.to_ndarray(format="rgb24"),))


class Peer(Protocol):
    """`run` builds every level from `level0` uint8 [H, W, 3] and returns when they are complete."""

    name: str

    def run(self, level0: Plane) -> None: ...

    def levels(self) -> list[Plane]:
        """Level that was built last: uint8 [H >> level, W >> level, 3]."""
        ...


class WholeFrame:
    """swscale for the whole frame, then padding and cv2's box pyramid into memory made beforehand."""

    def __init__(self, grid: TileGrid) -> None:
        size = (grid.padded_height_px, grid.padded_width_px)
        self._levels = [np.empty((size[0] >> level, size[1] >> level, 3), np.uint8) for level in range(LEVELS)]

    def update(self, frame: av.VideoFrame) -> None:
        rgb = frame.to_ndarray(format="rgb24")
        level0 = self._levels[0]
        bottom, right = level0.shape[0] - rgb.shape[0], level0.shape[1] - rgb.shape[1]
        cv2.copyMakeBorder(rgb, 0, bottom, 0, right, cv2.BORDER_REPLICATE, dst=level0)
        for fine, coarse in zip(self._levels[:-1], self._levels[1:], strict=True):
            cv2.resize(fine, coarse.shape[1::-1], dst=coarse, interpolation=cv2.INTER_AREA)


class BothFrames:
    """memcmp of two equal frames: what reading both once takes. One of them takes turns, as those of a case do."""

    def __init__(self, grid: TileGrid) -> None:
        samples = grid.height_px * grid.width_px * 3 // 2
        self._reference, *self._frames = (np.full(samples, 1, np.uint8) for _ in range(1 + PICTURES))
        self._memcmp = ctypes.CDLL(None).memcmp
        self.megabytes = 2 * samples / 1e6

    def read(self, turn: int) -> None:
        pair = [ctypes.c_void_p(frame.ctypes.data) for frame in (self._reference, self._frames[turn % PICTURES])]
        assert self._memcmp(*pair, ctypes.c_size_t(self._reference.nbytes)) == 0


class BuildPyramid:
    """cv2's `buildPyramid`, which its Python side lacks: `pyrDown` again and again (a Gaussian filter)."""

    name = "cv2 buildPyramid"

    def __init__(self) -> None:
        self._levels: list[Plane] = []

    def run(self, level0: Plane) -> None:
        if not self._levels:
            height, width, _ = level0.shape
            self._levels = [level0]
            self._levels += [np.empty((height >> level, width >> level, 3), np.uint8) for level in range(1, LEVELS)]
        self._levels[0] = level0
        for fine, coarse in zip(self._levels[:-1], self._levels[1:], strict=True):
            cv2.pyrDown(fine, dst=coarse)

    def levels(self) -> list[Plane]:
        return self._levels


class TorchPeer:
    """One that works on float32 [1, 3, H, W], already there; its levels are rounded to bytes for comparing only."""

    def __init__(self, name: str, device: str, build: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
        self.name = name if device == "cpu" else f"{name} ({device})"
        self._device, self._build = device, build
        self._source: tuple[int, torch.Tensor] | None = None

    def run(self, level0: Plane) -> None:
        with torch.inference_mode():
            self._levels = self._build(self._tensor(level0))
        if self._device != "cpu":
            torch.cuda.synchronize()

    def levels(self) -> list[Plane]:
        return [level[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).cpu().numpy() for level in self._levels]

    def _tensor(self, level0: Plane) -> torch.Tensor:
        if self._source is None or self._source[0] != id(level0):
            picture = torch.from_numpy(level0).permute(2, 0, 1)[None].to(self._device, torch.float32).contiguous()
            self._source = id(level0), picture
        return self._source[1]


def avg_pool(picture: torch.Tensor) -> list[torch.Tensor]:
    levels = [picture]
    for _ in range(LEVELS - 1):
        levels.append(torch.nn.functional.avg_pool2d(levels[-1], 2))
    return levels


def kornia_pyramid(picture: torch.Tensor) -> list[torch.Tensor]:
    import kornia

    pyramid: list[torch.Tensor] = kornia.geometry.transform.build_pyramid(picture, LEVELS)
    return pyramid


def peers(grid: TileGrid) -> Iterator[Peer]:
    """Those that can run here."""
    yield BuildPyramid()
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    builders: dict[str, Any] = {"torch avg_pool2d": avg_pool}
    if find_spec("kornia") is not None:
        builders["kornia build_pyramid"] = kornia_pyramid
    for name, build in builders.items():
        for device in devices:
            yield TorchPeer(name, device, build)
    with suppress(StoreError):
        yield GenerateMipmap(grid)
