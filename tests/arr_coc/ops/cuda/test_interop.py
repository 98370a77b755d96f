"""Textures of OpenGL that CUDA writes: GL is real (Mesa serves), the CUDA device that shares them is the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest
import torch

from arr_coc.errors import BackendMissing, DeviceLost
from arr_coc.ops.cuda.store import CudaStore
from arr_coc.ops.gl import device as gl_device
from arr_coc.ops.store.difference import Difference, Thresholds
from arr_coc.ops.store.planes import PlaneFormat
from arr_coc.types import FramePlanes
from tests.arr_coc.ops.cuda.test_store import assert_equal_to_cpu
from tests.cuda_on_cpu.machine import OUT_OF_MEMORY, CpuMachine
from tests.support.stores import require
from tests.support.video import random_planes, stamp


@pytest.fixture
def shared(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> CpuMachine:
    """GL tells the device of the textures that it makes, as a driver that serves both would."""
    require("gl")
    gl = gl_device.open_device()

    def open_device(cuda: int | None = None) -> gl_device.GlDevice:
        return gl

    def make_storage(name: int, levels: int, form: int, width: int, height: int) -> None:
        storage(name, levels, form, width, height)
        cuda_on_cpu.add_gl_texture(name, width, height, levels)

    storage = gl.library.gl.glTextureStorage2D
    monkeypatch.setattr(gl_device, "open_device", open_device)
    monkeypatch.setattr(gl.library.gl, "glTextureStorage2D", make_storage)
    return cuda_on_cpu


@contextmanager
def sharing(planes: FramePlanes) -> Iterator[CudaStore]:
    store = CudaStore(PlaneFormat.of(planes), Thresholds(), 20, gl_interop=True)
    yield store
    store.close()


def is_texture(name: int) -> bool:
    gl = gl_device.open_device()
    with gl.current():
        return bool(gl.library.gl.glIsTexture(name))


def drawn(gl: gl_device.GlDevice, name: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """What OpenGL sees of a texture: uint8 [height, width, 4]."""
    out = np.full((height, width, 4), 1, np.uint8)
    with gl.current():
        names = gl.library.gl
        names.glGetTextureImage(name, 0, names.GL_RGBA, names.GL_UNSIGNED_BYTE, out.nbytes, out)
    return out


def test_the_store_is_the_same_on_a_texture_of_opengl(shared: CpuMachine) -> None:
    rng = np.random.default_rng(0)
    first, second = random_planes(rng, 100, 150), random_planes(rng, 100, 150)
    with sharing(first) as store:
        store.update(first, stamp(0))
        store.write(second, Difference.everywhere(store.grid), stamp(1))
        assert_equal_to_cpu(store, second)


def test_it_is_mapped_once_for_the_stores_whole_life(shared: CpuMachine) -> None:
    rng = np.random.default_rng(1)
    planes = random_planes(rng, 64, 64)
    before = shared.live()
    with shared.calls() as calls, sharing(planes) as store:
        for index in range(5):
            store.write(planes, Difference.everywhere(store.grid), stamp(index))
        assert shared.live()["mapped"] == before["mapped"] + 1
    assert calls.count("cuGraphicsMapResources") == calls.count("cuGraphicsUnmapResources") == 1
    assert calls.index("cuGraphicsUnmapResources") < calls.index("cuGraphicsUnregisterResource")
    assert shared.live() == before


def test_what_is_shown_is_a_copy_that_opengl_may_draw(shared: CpuMachine) -> None:
    rng = np.random.default_rng(2)
    planes = random_planes(rng, 64, 96)
    with sharing(planes) as store:
        for index in range(2):
            frame = random_planes(rng, 64, 96)
            store.write(frame, Difference.everywhere(store.grid), stamp(index))
            mapped = shared.live()["mapped"]
            name = store.show()
            assert shared.live()["mapped"] == mapped, "the texture to draw stays mapped, so GL must not touch it"
            with store.lease() as view:
                np.testing.assert_array_equal(shared.gl_texels(name, 0, 96, 64)[..., :3], view.read(0))
        assert is_texture(name)
        assert not drawn(gl_device.open_device(), name, 64, 96).any(), (
            "the CPU in CUDA's place writes memory of its own"
        )
    assert not is_texture(name)


@pytest.mark.parametrize("name", ["cuGraphicsGLRegisterImage", "cuGraphicsMapResources"])
def test_what_fails_halfway_is_undone(shared: CpuMachine, name: str) -> None:
    before = shared.live()
    shared.fail(name, OUT_OF_MEMORY)
    with pytest.raises(DeviceLost, match=name), sharing(random_planes(np.random.default_rng(3), 64, 64)):
        pass
    assert shared.live() == before


def test_opengl_elsewhere_is_said(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_device(cuda: int | None = None) -> None:
        raise BackendMissing(f"found no CUDA device {cuda} with OpenGL 4.5")

    monkeypatch.setattr(gl_device, "open_device", open_device)
    before = cuda_on_cpu.live()
    with (
        pytest.raises(
            BackendMissing, match="gl_interop needs OpenGL on the GPU that CUDA uses: found no CUDA device 0"
        ),
        sharing(random_planes(np.random.default_rng(4), 64, 64)),
    ):
        pass
    assert cuda_on_cpu.live() == before


def test_opengl_draws_what_cuda_wrote() -> None:
    """On a GPU that both use."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    rng = np.random.default_rng(5)
    planes = random_planes(rng, 64, 96)
    try:
        store = CudaStore(PlaneFormat.of(planes), Thresholds(), 20, gl_interop=True)
    except BackendMissing as error:
        pytest.skip(str(error))
    gl = gl_device.open_device(cuda=torch.cuda.current_device())
    for index in range(3):
        planes = random_planes(rng, 64, 96)
        store.write(planes, Difference.everywhere(store.grid), stamp(index))
        assert_equal_to_cpu(store, planes)
        pixels = drawn(gl, store.show(), 64, 96)
        with store.lease() as view:
            np.testing.assert_array_equal(pixels[..., :3], view.read(0))
        assert (pixels[..., 3] == 255).all()
    store.close()
