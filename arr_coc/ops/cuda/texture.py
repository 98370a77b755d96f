"""The mipmapped array, the surfaces that write its levels, and the texture object that samples all of them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from arr_coc.ops.cuda.driver import bindings, call
from arr_coc.types import LEVELS, TileGrid

SURFACE_LDST = 2
"""CUDA_ARRAY3D_SURFACE_LDST of cuda.h: surfaces may write the array."""

AS_INTEGERS, NORMALISED = 1, 2
"""CU_TRSF_READ_AS_INTEGER and CU_TRSF_NORMALIZED_COORDINATES of cuda.h; a mipmapped texture takes no other
coordinates."""


class MipTexture:
    """Six levels of RGBA8 on the device.

    `surfaces` are handles of the levels' surface objects, the finest first. Of the texture objects, which take
    normalised coordinates clamped to the edge, `handle` reads the nearest texel of the nearest level as bytes, and
    `smooth` blends texels and levels as floats of 0..1. All are freed with the array by the stack that was given.
    """

    def __init__(self, grid: TileGrid, owned: ExitStack, array: Any = None) -> None:
        """In the current context. `array`: one that is there already, for levels of the grid's size.

        Raises DeviceLost where the device has no memory for it.
        """
        self.width_px, self.height_px = grid.padded_width_px, grid.padded_height_px
        if array is None:
            array = call("cuMipmappedArrayCreate", _description(self.width_px, self.height_px), LEVELS)
            owned.callback(call, "cuMipmappedArrayDestroy", array)
        self.levels = tuple(call("cuMipmappedArrayGetLevel", array, level) for level in range(LEVELS))
        self.surfaces = tuple(_surface(level, owned) for level in self.levels)
        self.handle = _texture_object(array, owned, blended=False)
        self.smooth = _texture_object(array, owned, blended=True)


def _description(width_px: int, height_px: int) -> Any:
    cuda = bindings()
    wanted = cuda.CUDA_ARRAY3D_DESCRIPTOR()
    wanted.Width, wanted.Height, wanted.Depth = width_px, height_px, 0
    wanted.Format = cuda.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
    wanted.NumChannels = 4
    wanted.Flags = SURFACE_LDST
    return wanted


def _surface(level: Any, owned: ExitStack) -> int:
    cuda = bindings()
    resource = cuda.CUDA_RESOURCE_DESC()
    resource.resType = cuda.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
    resource.res.array.hArray = level
    surface = call("cuSurfObjectCreate", resource)
    owned.callback(call, "cuSurfObjectDestroy", surface)
    return int(surface)


def _texture_object(array: Any, owned: ExitStack, blended: bool) -> int:
    cuda = bindings()
    resource = cuda.CUDA_RESOURCE_DESC()
    resource.resType = cuda.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
    resource.res.mipmap.hMipmappedArray = array
    how = cuda.CUDA_TEXTURE_DESC()
    how.addressMode = [cuda.CUaddress_mode.CU_TR_ADDRESS_MODE_CLAMP] * 3
    point, linear = cuda.CUfilter_mode.CU_TR_FILTER_MODE_POINT, cuda.CUfilter_mode.CU_TR_FILTER_MODE_LINEAR
    how.filterMode = how.mipmapFilterMode = linear if blended else point
    how.flags = NORMALISED if blended else NORMALISED | AS_INTEGERS
    how.minMipmapLevelClamp, how.maxMipmapLevelClamp = 0.0, float(LEVELS - 1)
    texture = call("cuTexObjectCreate", resource, how, None)
    owned.callback(call, "cuTexObjectDestroy", texture)
    return int(texture)
