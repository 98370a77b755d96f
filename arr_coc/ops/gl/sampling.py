"""Colours at points of the texture, filtered by the graphics device.

An isotropic sample blends the eight texels around a point and its level (`textureLod`). An anisotropic one averages
along a line, such as a line of text, and leaves out what lies above and below. A GPU has a filter for it
(`textureGrad`, EXT_texture_filter_anisotropic); in software the kernel averages isotropic samples along the line, as in
McCormack et al., "Feline: fast elliptical lines for anisotropic texture mapping", SIGGRAPH 1999.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.errors import BackendMissing, NonFiniteError, OptionError, ShapeError
from arr_coc.ops.gl.compute import Dispatch, compute
from arr_coc.ops.gl.texture import TileTexture

GROUP = 64
"""Invocations of a workgroup of `sample_points.comp`."""

LARGEST_RATIO = 16
"""How many times longer than wide a footprint may be; a longer one is blurred as if it were wider."""

Floats = npt.NDArray[np.floating]


def sample(texture: TileTexture, points: Floats) -> npt.NDArray[np.float32]:
    """Colours at `points` [n, 3] (x, y, level): float32 [n, 3], RGB of 0..1.

    x and y are in texels of level 0, whose centres lie at 0.5, 1.5…; beyond the edge its texels go on. Devices weigh
    texels with 8 bits: results lie within 2/255 of exact trilinear interpolation. Raises ShapeError for another shape,
    NonFiniteError for NaN and infinity, DeviceLost where the device gave up.
    """
    _check("points", points, 3)
    records = np.zeros((len(points), 8), np.float32)
    records[:, :2], records[:, 5] = points[:, :2], points[:, 2]
    return _sampled(texture, records)


def sample_along(
    texture: TileTexture, points: Floats, footprints: Floats, width_px: float = 1.0
) -> npt.NDArray[np.float32]:
    """Colours averaged over elongated footprints: float32 [n, 3], RGB of 0..1.

    `points` [n, 2] (x, y) are their centres, `footprints` [n, 2] (dx, dy) their directions and lengths, all in texels
    of level 0; `width_px` is measured across. Which texels count, and how much, is the device's affair: a smooth
    picture's results lie within 4/255 of the mean along the line. Raises ShapeError for another shape or a footprint
    without length, OptionError for a width that is not positive, NonFiniteError for NaN and infinity, BackendMissing
    where the device has no anisotropic filter, DeviceLost where it gave up.
    """
    _check("points", points, 2)
    _check("footprints", footprints, 2)
    if len(points) != len(footprints):
        raise ShapeError(f"a footprint for each point: got {len(points)} points and {len(footprints)} footprints")
    if not 0 < width_px < np.inf:
        raise OptionError(f"a footprint's width is a positive number of texels, got {width_px}")
    if not (np.abs(footprints).max(axis=1, initial=0) > 0).all():
        raise ShapeError("a footprint needs a direction and a length, got (0, 0); use `sample` for points")
    if not texture.device.software and texture.anisotropy < LARGEST_RATIO:
        raise BackendMissing(
            f"{texture.device.renderer} filters {texture.anisotropy:g}:1 at most, and footprints need 16:1",
            "update its driver",
        )
    records = np.zeros((len(points), 8), np.float32)
    records[:, :2], records[:, 2:4], records[:, 4] = points, footprints, width_px
    return _sampled(texture, records, *(["PROBES"] if texture.device.software else []))


def _check(name: str, array: Floats, columns: int) -> None:
    if array.ndim != 2 or array.shape[1] != columns or not np.issubdtype(array.dtype, np.floating):
        raise ShapeError(f"{name} are floats [n, {columns}], got {array.dtype} {array.shape}")
    if not np.isfinite(array).all():
        raise NonFiniteError(f"{name} hold NaN or infinity; they must be finite")


def _sampled(texture: TileTexture, records: npt.NDArray[np.float32], *defines: str) -> npt.NDArray[np.float32]:
    colours = np.empty((len(records), 3), np.float32)
    if len(records):
        groups = -(-len(records) // GROUP)
        compute(texture.device, "sample_points", [records], colours, [Dispatch(groups)], texture, defines)
    return colours
