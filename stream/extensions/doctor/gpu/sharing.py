"""Memory that CUDA shares with OpenGL, and with another process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import numpy as np
import torch

from arr_coc.backends.cuda.device import call, find_device
from arr_coc.backends.cuda.interop import GlCudaStore, MappedTexture, interop_problem
from arr_coc.backends.cuda.ipc import FIRST_REGIONS, OpenedMemory, SharedMemory
from arr_coc.backends.cuda.memory import StreamOrder
from arr_coc.backends.gl import device as gl_device
from arr_coc.backends.gl.device import GlDevice
from arr_coc.backends.gl.texture import TileTexture
from arr_coc.backends.gl.upload import plan_upload
from arr_coc.errors import BackendMissing, counted
from arr_coc.texture.packing import cover
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.types import LEVELS, TILE_PX, FramePlanes, TileGrid
from stream.extensions.doctor.gpu.checks import CheckAbsent, CheckFailed, CheckResult, GpuCheck
from stream.extensions.doctor.gpu.kernels import WAIT_MS, both_stores
from stream.extensions.doctor.gpu.reference import (
    Picture,
    random_picture,
    random_planes,
    regions_of,
    require_equal,
    require_same_texture,
    stamp,
)
from stream.extensions.doctor.gpu.runner import run_check


def interop() -> CheckResult:
    """Register a texture of OpenGL, map it, read what OpenGL painted, write it by CUDA, and read that by OpenGL."""
    cuda = find_device()
    if (problem := interop_problem(cuda.index)) is not None:
        raise CheckAbsent(problem, "run OpenGL on the GPU: install libnvidia-gl; runs go without")
    gl = gl_device.open_device(cuda.index)
    rng = np.random.default_rng(0)
    grid = TileGrid.of(3 * TILE_PX, 5 * TILE_PX)
    gl_picture = random_picture(rng, 3 * TILE_PX, 5 * TILE_PX)
    texture = TileTexture(gl, *grid.shape)
    texture.paint(gl_picture, plan_upload(cover(np.ones(grid.shape, bool)), grid.shape, None))
    with cuda.current(), ExitStack() as resources:
        order = StreamOrder(resources)
        mapped = MappedTexture(cuda, texture, grid, order)
        resources.callback(mapped.close)
        tiles = [(row, col) for row in range(grid.rows) for col in range(grid.cols)]
        places = torch.tensor(tiles, dtype=torch.int32).to(cuda.place)
        out = cuda.empty((len(tiles), TILE_PX, TILE_PX, 3), torch.uint8)
        size = (grid.padded_width_px, grid.padded_height_px)
        with mapped.mapped() as handles, cuda.current() as stream:
            values = (handles.handle, places.data_ptr(), *size, out.data_ptr())
            cuda.kernels.launch("fetch_fine", (len(tiles), 1), stream, *values)
            call("cuStreamSynchronize", stream)
            require_equal(out.cpu(), _tiles(gl_picture, tiles), "OpenGL's texels, read by CUDA")
            cuda_picture = random_picture(rng, 3 * TILE_PX, 5 * TILE_PX)
            texels = torch.from_numpy(_tiles(cuda_picture, tiles)).to(cuda.place)
            cuda.kernels.launch(
                "upload_tiles", (len(tiles), 1), stream, texels.data_ptr(), places.data_ptr(), *handles.surfaces
            )
            order.after_write(stream)
        with mapped.unmapped():
            level0 = gl_level(gl, texture.name, 0, *size[::-1])[..., :3]
        require_equal(level0, cuda_picture, "CUDA's texels, read by OpenGL")
        maps = mapped.maps
    texture.release()
    gl.clear()
    return CheckResult(f"texels agree both ways, {maps} map", software=gl.software)


def _tiles(picture: Picture, tiles: list[tuple[int, int]]) -> Picture:
    return np.stack([picture[row * 32 : row * 32 + 32, col * 32 : col * 32 + 32] for row, col in tiles])


def gl_level(gl: GlDevice, name: int, level: int, height: int, width: int) -> Picture:
    """Return a level of a texture as OpenGL sees it.

    Args:
        gl: Device that holds the texture.
        name: OpenGL name of the texture.
        level: Level of the mipmap, 0 for the finest.
        height: Height of the level, in texels.
        width: Width of the level, in texels.

    Returns:
        uint8 RGBA [height, width, 4].
    """
    out = np.full((height, width, 4), 1, np.uint8)
    with gl.current():
        names = gl.library.gl
        names.glGetTextureImage(name, level, names.GL_RGBA, names.GL_UNSIGNED_BYTE, out.nbytes, out)
    return out


def gl_cuda_store() -> CheckResult:
    """Follow a stream in a texture of OpenGL that CUDA writes and OpenGL draws from by turns."""
    cuda = find_device()
    rng = np.random.default_rng(1)
    gl = gl_device.open_device(cuda.index)
    height = 100
    width = 150
    planes = random_planes(rng, height, width)
    with shared_store(planes) as store, both_stores(planes, "cpu") as (reference, _):
        frames = 6
        for index in range(frames):
            planes = random_planes(rng, height, width)
            for texture_store in (store, reference):
                texture_store.write(planes, Difference.everywhere(store.grid), stamp(index))
            compare_with_reference(store, reference, rng)
            with gl.current(), store.drawing() as texture, reference.lease() as reference_view:
                for level in range(LEVELS):
                    texels = gl_level(gl, texture.name, level, *(side * TILE_PX >> level for side in store.grid.shape))
                    require_equal(texels[..., :3], reference_view.read(level), f"level {level}, drawn by OpenGL")
        if store.maps != frames:
            raise CheckFailed(f"the texture was mapped {store.maps} times for {frames} drawings")
    return CheckResult(f"{counted(frames, 'frame')} written by CUDA and drawn by OpenGL", software=gl.software)


def compare_with_reference(store: GlCudaStore, reference: object, rng: np.random.Generator) -> None:
    """Compare what CUDA reads of a shared texture with a store that holds the same frame."""
    with store.lease() as view, reference.lease() as reference_view:  # type: ignore[attr-defined]
        regions = regions_of(view.grid, rng, 20)
        require_equal(view.patches(regions).cpu(), reference_view.gather(regions), "regions, read by CUDA")
        require_equal(view.gather(regions), reference_view.gather(regions), "regions on the host")
        channels, _ = view.texture_array()
        if not channels.isfinite().all():
            raise CheckFailed("channels of a shared texture are not finite")
    require_same_texture(store, reference)  # type: ignore[arg-type]


@contextmanager
def shared_store(planes: FramePlanes) -> Iterator[GlCudaStore]:
    """A store whose texture OpenGL and CUDA share, for frames like this one."""
    fmt = PlaneFormat.of(planes)
    with closing(GlCudaStore(fmt, Thresholds(), WAIT_MS, find_device().index)) as store:
        yield store


READER = GpuCheck("reader", "stream.extensions.doctor.gpu.sharing:read_shared", "", limit_s=40)


def ipc() -> CheckResult:
    """Share device memory with another process by its handle, which reads what this one wrote."""
    memory = SharedMemory()
    generator = torch.Generator().manual_seed(0)
    counts = (5, FIRST_REGIONS + 1)
    with closing(memory):
        for count in counts:
            pixels = torch.randint(0, 256, (count, 3, TILE_PX, TILE_PX), dtype=torch.uint8, generator=generator)
            memory.write(pixels.to(find_device().place))
            place = {"handle": memory.handle.hex(), "gpu": memory.gpu.hex(), "count": count}
            row = run_check(replace(READER, argument=json.dumps(place)))
            if row.state == "absent":
                raise CheckAbsent(row.finding, "pixels go through host memory, as a notice says")
            if row.state != "works":
                raise CheckFailed(f"the other process: {row.finding}\n{row.traceback}")
            require_equal(row.facts["sums"], _sums(pixels), "pixels that another process read")
    return CheckResult(f"{' and '.join(map(str, counts))} regions were the same in another process")


def read_shared(argument: str) -> CheckResult:
    """Process of the other side: open the memory, and report checksums of its pixels."""
    place = json.loads(argument)
    try:
        memory = OpenedMemory(bytes.fromhex(place["handle"]), bytes.fromhex(place["gpu"]))
    except BackendMissing as error:
        raise CheckAbsent(error.problem) from error
    with closing(memory):
        return CheckResult("read", {"sums": _sums(memory.read(place["count"]).cpu())})


def _sums(pixels: torch.Tensor) -> list[int]:
    """Checksums of each region, which differ if its bytes change their places."""
    weights = torch.arange(1, 3 * TILE_PX * TILE_PX + 1)
    return [int(value) for value in (pixels.flatten(1).long() * weights).sum(1)]
