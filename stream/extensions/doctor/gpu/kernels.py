"""Kernels of CUDA and shaders of OpenGL against the CPU, on odd and random sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import torch

from arr_coc.backends.cuda.device import CudaDevice, compile_kernel, find_device, shipped_ptx
from arr_coc.backends.cuda.nvrtc import compile_source, nvrtc_version
from arr_coc.backends.cuda.store import CudaStore
from arr_coc.backends.cuda.view import CudaView
from arr_coc.backends.gl.store import GlChannelView, GlStore
from arr_coc.backends.registry import open_store
from arr_coc.errors import BackendMissing
from arr_coc.relevance.channels import texture_array
from arr_coc.texture.store.base import TextureStore
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.types import LEVELS, REGION_SHAPES, FramePlanes
from stream.extensions.doctor.gpu.checks import CheckFailed, CheckResult
from stream.extensions.doctor.gpu.reference import (
    Floats,
    Picture,
    bilinear,
    random_picture,
    random_planes,
    regions_of,
    require_close,
    require_equal,
    require_same_texture,
    rgb_planes,
    smooth_picture,
    stamp,
    trilinear,
    with_tiles_of,
)

Size = tuple[int, int]

ODD_SIZES: tuple[Size, ...] = ((1, 1), (31, 33), (32, 32), (33, 31), (64, 96), (97, 301))
"""Heights and widths around the edges of tiles."""

LARGE_SIZES: tuple[Size, ...] = ((270, 480), (1080, 1920))
"""For a real device."""

RANDOM_SIZES = 3

WAIT_MS = 2000

EXACT = Thresholds(mean=0, largest=0)

SAMPLE_ERROR = 2 / 255
LINE_ERROR = 4 / 255
"""Errors of a filter that weighs texels with 8 bits: at a point, and along a line."""


def kernel(file: str) -> CheckResult:
    """Compare the kernels of `kernels/<file>.cu` from each origin that this machine has."""
    device = find_device()
    compare = COMPARISONS[file]
    images, notes = origins(file, device)
    sizes = sizes_for(device)
    for origin, image in images.items():
        try:
            with device.current():
                device.kernels.use(file, image)
            for seed, size in enumerate(sizes):
                _compare_at(compare, size, seed)
        except CheckFailed as error:
            raise CheckFailed(f"{origin}: {error.problem}") from error
    return CheckResult(f"{', '.join(images)}: equal at {len(sizes)} sizes", {"origins": list(images), **notes})


def origins(file: str, device: CudaDevice) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the code of a file by its origin: PTX that is shipped, NVRTC, nvcc; and why one is missing."""
    images = {"ptx": shipped_ptx(file)}
    notes = {}
    capability = device.kernels.capability
    try:
        images["nvrtc"] = compile_source(file, capability)
        notes["nvrtc"] = nvrtc_version()
    except BackendMissing as error:
        notes["nvrtc"] = error.problem
    if (image := compile_kernel(file, capability)) is not None:
        images["nvcc"] = image
    return images, notes


def sizes_for(device: CudaDevice) -> tuple[Size, ...]:
    """Return the sizes of frames to compare: fewer if a CPU emulates the device."""
    rng = np.random.default_rng(0)
    random_sizes = tuple((int(rng.integers(1, 300)), int(rng.integers(1, 420))) for _ in range(RANDOM_SIZES))
    return (*ODD_SIZES, *random_sizes, *(LARGE_SIZES if device.place.type == "cuda" else ()))


def _compare_at(compare: Callable[[Size, int], None], size: Size, seed: int) -> None:
    try:
        compare(size, seed)
    except CheckFailed as error:
        raise CheckFailed(f"{size[1]}x{size[0]}: {error.problem}") from error


@contextmanager
def both_stores(planes: FramePlanes, backend: Any = "cuda") -> Iterator[tuple[Any, TextureStore]]:
    """A store of a backend and one of the CPU for frames like this one; every difference counts."""
    stores = [
        open_store(PlaneFormat.of(planes), name, thresholds=EXACT, lease_timeout_ms=WAIT_MS)
        for name in (backend, "cpu")
    ]
    with closing(stores[0]), closing(stores[1]):
        yield stores[0], stores[1]


@contextmanager
def view_of(picture: Picture) -> Iterator[CudaView]:
    """A picture as a texture on the device."""
    planes = rgb_planes(picture)
    with closing(CudaStore(PlaneFormat.of(planes), Thresholds(), WAIT_MS)) as store:
        store.update(planes, stamp(0))
        with store.lease() as view:
            yield view


def on_device(array: Any) -> torch.Tensor:
    """Return an array as a tensor on the device."""
    return torch.from_numpy(array).to(find_device().place)


def compare_upload(size: Size, seed: int) -> None:
    """Whole frames and some tiles of them, from planes in host memory: all levels."""
    rng = np.random.default_rng(seed)
    for layout in ("yuv", "rgb"):
        planes = random_planes(rng, *size, layout=layout)
        with both_stores(planes) as stores:
            for index, share in enumerate((1.0, 0.1, 0.5)):
                dirty = rng.random(stores[0].grid.shape) < share
                planes = with_tiles_of(planes, random_planes(rng, *size, layout=layout), dirty)
                for store in stores:
                    store.write(planes, Difference(dirty), stamp(index))
            require_same_texture(*stores)


def compare_fetch(size: Size, seed: int) -> None:
    """Levels that the host reads in any order, after frames that the host had and frames that it had not."""
    rng = np.random.default_rng(seed)
    picture = random_picture(rng, *size)
    with both_stores(rgb_planes(picture)) as (store, reference):
        for index in range(4):
            picture = picture.copy()
            picture[: rng.integers(1, size[0] + 1), : rng.integers(1, size[1] + 1)] = rng.integers(0, 256, 3)
            if index % 2:
                store.update(rgb_planes(picture), stamp(index))
            else:
                store.update_tensor(on_device(picture), stamp(index))
            reference.update(rgb_planes(picture), stamp(index))
            require_same_texture(store, reference, tuple(rng.permutation(LEVELS).tolist()))


def compare_gather(size: Size, seed: int) -> None:
    """Pixels of regions of all shapes, as bytes and halves, named on the host and on the device."""
    rng = np.random.default_rng(seed)
    picture = random_picture(rng, *size)
    with both_stores(rgb_planes(picture)) as stores:
        for store in stores:
            store.update(rgb_planes(picture), stamp(0))
        with stores[0].lease() as view, stores[1].lease() as reference_view:
            regions = regions_of(view.grid, rng, 40)
            expected = reference_view.gather(regions)
            require_equal(view.gather(regions), expected, "regions")
            exact = torch.from_numpy(expected)
            for dtype in (torch.uint8, torch.float16, torch.bfloat16):
                if dtype == torch.uint8:
                    halves = exact
                else:
                    halves = ((exact.float() / 255 - 0.5) / 0.5).to(dtype)
                for region_array in (regions, on_device(regions)):
                    patches = view.patches(region_array, dtype).cpu()
                    if not torch.equal(patches, halves):
                        require_equal(patches.float(), halves.float(), f"regions as {dtype}")
            _compare_outside(view, reference_view.read(0))


def _compare_outside(view: CudaView, level0: Picture) -> None:
    """Regions on the device are not checked, so those outside the grid show the nearest texels."""
    rows, cols = view.grid.shape
    outside = np.array([[0, 99, 99], [0, -50, -50], [40, 0, 0]])
    patches = view.patches(on_device(outside)).cpu().numpy()
    require_equal(patches[0], np.broadcast_to(level0[-1, -1][:, None, None], (3, 32, 32)), "a region past the end")
    require_equal(patches[1], np.broadcast_to(level0[0, 0][:, None, None], (3, 32, 32)), "a region before the start")
    last = view.gather(np.array([[len(REGION_SHAPES) - 1, 0, 0]]))
    require_equal(patches[2], last[0], f"a shape that does not exist, in {rows}x{cols} tiles")


def compare_difference(size: Size, seed: int, noise: int | None = None, layout: str | None = None) -> None:
    """Frames that are on the device, as tensors with any strides: which tiles differ, and all levels.

    Args:
        size: (height, width) of the frames, in pixels.
        seed: Seed of the pictures and of what is not given.
        noise: Largest change of a sample between the two frames; drawn if None.
        layout: Layout of the tensors: HWC, CHW or strided; drawn if None.
    """
    rng = np.random.default_rng(seed)
    noise = noise or int(rng.choice([1, 3, 4, 5, 9, 60]))
    layout = layout or str(rng.choice(["HWC", "CHW", "strided"]))
    first = random_picture(rng, *size)
    changes = rng.integers(-noise, noise + 1, first.shape) * (rng.random((size[0], 1, 1)) < 0.6)
    second = np.clip(first + changes, 0, 255).astype(np.uint8)
    fmt = PlaneFormat.of(rgb_planes(first))
    with closing(open_store(fmt, "cuda")) as store, closing(open_store(fmt, "cpu")) as reference:
        assert isinstance(store, CudaStore)
        for index, frame in enumerate((first, second)):
            tensor = on_device(frame)
            if layout == "CHW":
                tensor = tensor.permute(2, 0, 1).contiguous()
            elif layout == "strided":
                tensor = torch.cat([tensor, tensor], dim=1)[:, : size[1]]
            change = store.update_tensor(tensor, stamp(index))
            expected = reference.update(rgb_planes(frame), stamp(index))
            require_equal(change.dirty, expected.dirty, f"changed tiles of a frame {layout}, noise of {noise}")
        require_same_texture(store, reference, (5, 0, 1, 2, 3, 4))


def compare_channels(size: Size, seed: int, kind: str | None = None) -> None:
    """The thirteen channels and the entropy of `kind`, noise or soft; without it both."""
    for picture_kind in ("noise", "soft") if kind is None else (kind,):
        with view_of(random_picture(np.random.default_rng(seed), *size, picture_kind)) as view:
            _require_same_channels(view, cluster_error=1e-3)


def _require_same_channels(view: CudaView | GlChannelView, cluster_error: float) -> None:
    exact = [*range(8), 11]
    channels, entropy = (tensor.cpu() for tensor in view.texture_array())
    expected = texture_array(view)
    require_equal(channels[exact], expected.channels[exact], "channels 0 to 7 and 11")
    require_equal(entropy, expected.entropy, "entropy")
    require_close(channels[8:11], expected.channels[8:11], "saliency", 2e-6)
    require_close(channels[12], expected.channels[12], "distance to a colour cluster", cluster_error)


def compare_samples(size: Size, seed: int) -> None:
    """Colours between texels and levels by the texture units, and means along lines."""
    rng = np.random.default_rng(seed)
    with view_of(random_picture(rng, *size)) as view:
        levels = [view.read(level) / 255.0 for level in range(LEVELS)]
        points = _random_points(rng, size)
        samples = view.sample(on_device(points.astype(np.float32))).cpu()
        require_close(samples, trilinear(levels, points), "samples", SAMPLE_ERROR)
    if seed % 4:
        return
    with view_of(smooth_picture()) as view:
        levels = [view.read(0) / 255.0]
        centres, lines = _random_lines(rng)
        places, directions = (on_device(array.astype(np.float32)) for array in (centres, lines))
        means = view.sample_along(places, directions).cpu()
        require_close(means, _means_along(levels[0], centres, lines), "means along lines", LINE_ERROR)


def _random_points(rng: np.random.Generator, size: Size) -> Floats:
    return rng.uniform((-20, -20, 0), (size[1] + 20, size[0] + 20, 5), (500, 3))


def _random_lines(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Centres and directions of lines in `smooth_picture`, up to 16 texels long."""
    angles = rng.uniform(0, 2 * np.pi, 200)
    lengths = rng.uniform(1, 16, (200, 1))
    return rng.uniform((30, 30), (120, 90), (200, 2)), np.stack([np.cos(angles), np.sin(angles)], 1) * lengths


def _means_along(level: Floats, centres: Floats, lines: Floats) -> Floats:
    steps = (np.arange(64) + 0.5) / 64 - 0.5
    return np.mean([bilinear(level, *(centres + lines * step).T) for step in steps], axis=0)


COMPARISONS: dict[str, Callable[[Size, int], None]] = {
    "upload": compare_upload,
    "fetch": compare_fetch,
    "gather": compare_gather,
    "sample": compare_samples,
    "difference": compare_difference,
    "channels": compare_channels,
}


def shaders() -> CheckResult:
    """Compare the compute shaders of OpenGL: mipmaps, regions, samples, channels."""
    for seed, size in enumerate(ODD_SIZES):
        _compare_at(_compare_shaders, size, seed)
    with _gl_store(np.zeros((32, 32, 3), np.uint8)) as store:
        return CheckResult(f"equal at {len(ODD_SIZES)} sizes", software=store.device.software)


def _compare_shaders(size: Size, seed: int) -> None:
    rng = np.random.default_rng(seed)
    picture = random_picture(rng, *size)
    reference = open_store(PlaneFormat.of(rgb_planes(picture)), "cpu")
    reference.update(rgb_planes(picture), stamp(0))
    with _gl_store(picture) as store, store.texels() as texels, closing(reference):
        require_same_texture(store, reference)
        regions = regions_of(store.grid, rng, 40)
        with reference.lease() as reference_view:
            require_equal(texels.gather(regions), reference_view.gather(regions), "regions")
            levels = [reference_view.read(level) / 255.0 for level in range(LEVELS)]
        points = _random_points(rng, size)
        require_close(texels.sample(points), trilinear(levels, points), "samples", SAMPLE_ERROR)
        store.gives_channels = True
        with store.lease() as view:
            assert isinstance(view, GlChannelView)
            _require_same_channels(view, cluster_error=1e-6)
    if seed % 4:
        return
    centres, lines = _random_lines(rng)
    with _gl_store(smooth_picture()) as store, store.texels() as texels:
        expected = _means_along(texels.read(0) / 255.0, centres, lines)
        require_close(texels.sample_along(centres, lines), expected, "means along lines", LINE_ERROR)


@contextmanager
def _gl_store(picture: Picture) -> Iterator[GlStore]:
    planes = rgb_planes(picture)
    with closing(GlStore(PlaneFormat.of(planes), EXACT, WAIT_MS)) as store:
        store.update(planes, stamp(0))
        yield store
