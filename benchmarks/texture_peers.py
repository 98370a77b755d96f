"""What others take for a whole frame: a pyramid of six levels by each library's own means."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Protocol

import av
import cv2
import numpy as np
import torch

from arr_coc.errors import StoreError
from arr_coc.types import LEVELS, TileGrid
from benchmarks.texture_frames import Plane


class Peer(Protocol):
    """`run` builds every level from `level0` uint8 [H, W, 3] and returns when they are there."""

    name: str

    def run(self, level0: Plane) -> None: ...

    def levels(self) -> list[Plane]:
        """What was built last: uint8 [H >> level, W >> level, 3]."""
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


class BuildPyramid:
    """What cv2's `buildPyramid` does, which its Python side lacks: `pyrDown` again and again (a Gaussian filter)."""

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


class GenerateMipmap:
    """The driver's own: upload of a whole level 0 as RGBA, glGenerateMipmap, and waiting for it."""

    name = "glGenerateMipmap"

    def __init__(self, grid: TileGrid) -> None:
        """Raises BackendMissing where nothing here gives OpenGL."""
        from arr_coc.ops.gl.device import open_device

        self._device, self._shape = open_device(), (grid.padded_height_px, grid.padded_width_px)
        self._rgba = np.empty((*self._shape, 4), np.uint8)
        gl, name = self._device.library.gl, ctypes.c_uint()
        with self._device.current():
            gl.glCreateTextures(gl.GL_TEXTURE_2D, 1, name)
            gl.glTextureStorage2D(name, LEVELS, gl.GL_RGBA8, self._shape[1], self._shape[0])
        self._name = name.value

    def run(self, level0: Plane) -> None:
        gl = self._device.library.gl
        cv2.cvtColor(level0, cv2.COLOR_RGB2RGBA, dst=self._rgba)
        with self._device.current():
            size = (self._shape[1], self._shape[0])
            gl.glTextureSubImage2D(self._name, 0, 0, 0, *size, gl.GL_RGBA, gl.GL_UNSIGNED_BYTE, self._rgba)
            gl.glGenerateTextureMipmap(self._name)
            gl.glFinish()

    def levels(self) -> list[Plane]:
        gl, levels = self._device.library.gl, []
        with self._device.current():
            for level in range(LEVELS):
                shape = (self._shape[0] >> level, self._shape[1] >> level, 4)
                texels = np.empty(shape, np.uint8)
                gl.glGetTextureImage(self._name, level, gl.GL_RGBA, gl.GL_UNSIGNED_BYTE, texels.nbytes, texels)
                levels.append(texels[..., :3])
        return levels


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
