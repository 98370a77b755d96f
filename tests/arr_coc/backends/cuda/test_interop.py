"""Textures of OpenGL that CUDA writes and reads: GL is real (Mesa serves), the CUDA device is the CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.backends.cuda import device as driver
from arr_coc.backends.cuda import interop
from arr_coc.backends.cuda.interop import GlCudaStore, interop_problem
from arr_coc.backends.cuda.view import CudaView
from arr_coc.backends.gl import device as gl_device
from arr_coc.backends.registry import open_store
from arr_coc.errors import BackendMissing, DeviceLost, StoreError
from arr_coc.texture.store.planes import Difference, PlaneFormat
from arr_coc.types import LEVELS, FramePlanes
from stream.extensions.doctor.gpu.reference import regions_of
from stream.extensions.doctor.gpu.sharing import gl_level
from tests.cuda_on_cpu.gl_sharing import share_textures
from tests.cuda_on_cpu.machine import OUT_OF_MEMORY, CpuMachine
from tests.support.stores import require
from tests.support.video import random_planes, stamp

READ_BACK = "cuMemcpyDtoHAsync"


@pytest.fixture
def shared(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> CpuMachine:
    """GL registers its textures, and their texels, with the device, as a driver for both would."""
    require("gl")
    share_textures(cuda_on_cpu, monkeypatch.setattr)
    return cuda_on_cpu


@contextmanager
def sharing(planes: FramePlanes) -> Iterator[GlCudaStore]:
    store = open_store(PlaneFormat.of(planes), "gl", lease_timeout_ms=200, interop=0)
    assert isinstance(store, GlCudaStore)
    yield store
    store.close()


def test_it_holds_what_the_cpu_store_holds(shared: CpuMachine) -> None:
    rng = np.random.default_rng(0)
    first, second = random_planes(rng, 100, 150), random_planes(rng, 100, 150)
    reference = open_store(PlaneFormat.of(first), "cpu")
    with sharing(first) as store:
        for index, frame in enumerate((first, second)):
            store.write(frame, Difference.everywhere(store.grid), stamp(index))
            reference.write(frame, Difference.everywhere(store.grid), stamp(index))
            with store.lease() as view, reference.lease() as expected, shared.calls() as calls:
                assert isinstance(view, CudaView)
                regions = regions_of(view.grid, rng, 20)
                assert torch.equal(view.patches(regions), torch.from_numpy(expected.gather(regions)))
                channels, _ = view.texture_array()
                assert channels.isfinite().all()
            assert READ_BACK not in calls
            with store.lease() as view, reference.lease() as expected:
                np.testing.assert_array_equal(view.gather(regions), expected.gather(regions))
                for level in range(LEVELS):
                    np.testing.assert_array_equal(view.read(level), expected.read(level))
        assert "written by CUDA device 0" in store.hardware
        assert store.backend == "gl"


def test_it_is_registered_once_and_stays_mapped_while_nothing_draws(shared: CpuMachine) -> None:
    rng = np.random.default_rng(1)
    frames = [random_planes(rng, 64, 64) for _ in range(2)]
    before = shared.live()
    with shared.calls() as calls, sharing(frames[0]) as store:
        for index in range(1000):
            store.write(frames[index % 2], Difference.everywhere(store.grid), stamp(index))
            if index % 100 == 0:
                with store.lease() as view:
                    view.patches(np.array([[0, 1, 1]]))
        assert shared.live()["mapped"] == before["mapped"] + 1
        assert store.maps == 1
    assert calls.count("cuGraphicsGLRegisterImage") == calls.count("cuGraphicsUnregisterResource") == 1
    assert calls.count("cuGraphicsMapResources") == calls.count("cuGraphicsUnmapResources") == 1
    assert shared.live() == before


def test_each_drawing_shows_the_newest_frame_and_costs_one_map(shared: CpuMachine) -> None:
    rng = np.random.default_rng(2)
    frames = [random_planes(rng, 64, 96) for _ in range(3)]
    gl = gl_device.open_device()
    reference = open_store(PlaneFormat.of(frames[0]), "cpu")
    with sharing(frames[0]) as store:
        for index, frame in enumerate(frames):
            for any_store in (store, reference):
                any_store.update(frame, stamp(index))
            with gl.current(), store.drawing() as texture, reference.lease() as expected:
                for level in range(LEVELS):
                    texels = gl_level(gl, texture.name, level, 64 >> level, 96 >> level)[..., :3]
                    np.testing.assert_array_equal(texels, expected.read(level))
        assert store.maps == len(frames)


def test_a_drawer_has_the_texture_for_itself(shared: CpuMachine) -> None:
    planes = random_planes(np.random.default_rng(3), 64, 96)
    gl = gl_device.open_device()
    with sharing(planes) as store:
        before = shared.live()["mapped"]
        store.update(planes, stamp(0))
        with store.lease() as view:
            expected = view.read(0)
            view.patches(np.array([[0, 0, 0]]))
        assert shared.live()["mapped"] == before + 1
        finished = threading.Event()

        def read() -> None:
            with store.lease() as view:
                view.patches(np.array([[0, 0, 0]]))
            finished.set()

        with gl.current(), store.drawing() as texture:
            assert shared.live()["mapped"] == before, "OpenGL must not touch what CUDA has mapped"
            reader = threading.Thread(target=read)
            reader.start()
            np.testing.assert_array_equal(gl_level(gl, texture.name, 0, 64, 96)[..., :3], expected)
            with store.lease() as view, pytest.raises(StoreError, match="read it with CUDA afterwards"):
                view.patches(np.array([[0, 0, 0]]))
            assert not finished.is_set()
        reader.join()
        assert finished.is_set()


def test_drawing_needs_a_context(shared: CpuMachine) -> None:
    planes = random_planes(np.random.default_rng(4), 64, 64)
    errors: list[str] = []

    def draw(store: GlCudaStore) -> None:
        try:
            with store.drawing():
                pass
        except StoreError as error:
            errors.append(str(error))

    with sharing(planes) as store:
        store.update(planes, stamp(0))
        thread = threading.Thread(target=draw, args=(store,))
        thread.start()
        thread.join()
    assert "GlDevice.make_context" in errors[0]


def read_once(planes: FramePlanes) -> None:
    with sharing(planes) as store:
        try:
            store.update(planes, stamp(0))
            with store.lease() as view:
                view.patches(np.array([[0, 0, 0]]))
        finally:
            store.close()


@pytest.mark.parametrize("name", ["cuGraphicsGLRegisterImage", "cuGraphicsMapResources"])
def test_a_device_that_is_lost_is_reported_and_left_unchanged(shared: CpuMachine, name: str) -> None:
    before = shared.live()
    shared.fail(name, OUT_OF_MEMORY)
    with pytest.raises(DeviceLost, match=name):
        read_once(random_planes(np.random.default_rng(5), 64, 64))
    assert shared.live() == before


def test_opengl_on_another_gpu_is_reported(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_device(cuda: int | None = None) -> None:
        raise BackendMissing(f"finds no OpenGL 4.5 on CUDA device {cuda}")

    monkeypatch.setattr(interop, "open_device", open_device)
    assert interop_problem(0) == "finds no OpenGL 4.5 on CUDA device 0"
    assert interop_problem(3) == "there is no CUDA device 3: 1 found; check them with nvidia-smi"


def test_opengl_that_draws_on_another_device_of_cuda_is_reported(shared: CpuMachine) -> None:
    """EGL's numbers are not those of a process that sees some of the devices only."""
    with shared.opengl_on(1):
        problem = interop_problem(0)
    assert problem is not None
    assert problem.endswith("draws on CUDA device 1, not on 0")
    assert interop_problem(0) is None


@contextmanager
def registered(shared: CpuMachine) -> Iterator[tuple[GlCudaStore, Any]]:
    """A store that holds a frame, and its registered texture; the driver's calls may be made inside."""
    planes = random_planes(np.random.default_rng(7), 64, 64)
    with sharing(planes) as store:
        store.update(planes, stamp(0))
        with gl_device.open_device().current(), shared.device.current():
            yield store, store._mapped._resource


@pytest.mark.parametrize(
    ("first", "breach", "reason"),
    [
        (None, "cuGraphicsMapResources", "ALREADY_MAPPED"),
        ("cuGraphicsUnmapResources", "cuGraphicsUnmapResources", "NOT_MAPPED"),
        (None, "cuGraphicsUnregisterResource", "INVALID_VALUE"),
    ],
)
def test_the_device_on_the_cpu_keeps_to_the_rules_of_mapping(
    shared: CpuMachine, first: str | None, breach: str, reason: str
) -> None:
    with registered(shared) as (_, resource):
        if first is not None:
            driver.call(first, 1, resource, shared.stream)
        with pytest.raises(DeviceLost, match=reason):
            driver.call(breach, *([resource] if "Unregister" in breach else [1, resource, shared.stream]))


def test_a_texture_is_mapped_with_opengl_current(shared: CpuMachine) -> None:
    with registered(shared) as (_, resource):
        calls = gl_device.open_device().library.calls
        context = calls.eglGetCurrentContext()
        display = calls.eglGetCurrentDisplay()
        calls.eglMakeCurrent(display, None, None, None)
        try:
            with pytest.raises(DeviceLost, match="INVALID_GRAPHICS_CONTEXT"):
                driver.call("cuGraphicsUnregisterResource", resource)
        finally:
            calls.eglMakeCurrent(display, None, None, context)


def test_handles_of_a_mapping_are_worth_nothing_after_it(shared: CpuMachine) -> None:
    """Work that runs after the texture was unmapped would write what OpenGL reads."""
    with registered(shared) as (store, resource), store._mapped.mapped() as texture:
        tile, place = np.zeros((1, 32, 32, 3), np.uint8), np.zeros((1, 2), np.int32)
        with shared.late():
            with shared.on_stream(2):
                values = (tile.ctypes.data, place.ctypes.data, *texture.surfaces)
                shared.device.kernels.launch("upload_tiles", (1, 1), shared.stream, *values)
            driver.call("cuGraphicsUnmapResources", 1, resource, shared.stream)
            with pytest.raises(DeviceLost, match="ILLEGAL_ADDRESS"):
                driver.call("cuStreamSynchronize", 2)
            shared.recover()
        driver.call("cuGraphicsMapResources", 1, resource, shared.stream)


def test_drawing_begins_once_all_streams_have_written_and_read(shared: CpuMachine) -> None:
    rng = np.random.default_rng(8)
    planes = random_planes(rng, 64, 64)
    regions = torch.tensor([[0, 0, 0], [1, 0, 0]])
    reference = open_store(PlaneFormat.of(planes), "cpu")
    reference.update(planes, stamp(0))
    gl = gl_device.open_device()
    with sharing(planes) as store, shared.late(), reference.lease() as expected:
        with shared.on_stream(3):
            store.update(planes, stamp(0))
        with shared.on_stream(2), store.lease() as view:
            patches = view.patches(regions)
        with gl.current(), store.drawing() as texture:
            np.testing.assert_array_equal(gl_level(gl, texture.name, 0, 64, 64)[..., :3], expected.read(0))
            assert torch.equal(patches, torch.from_numpy(expected.gather(regions.numpy())))


def test_cuda_resources_of_a_texture_are_freed_though_opengl_was_lost(
    shared: CpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    planes = random_planes(np.random.default_rng(9), 64, 64)
    gl = gl_device.open_device()
    before = shared.live()
    with sharing(planes) as store:
        store.update(planes, stamp(0))
        with monkeypatch.context() as patched:
            patched.setattr(gl, "loss_reason", "the renderer was reset")
            store.close()
        left = {kind: count - before[kind] for kind, count in shared.live().items() if count != before[kind]}
    assert left == {"registered": 1, "mapped": 1}, "these went with OpenGL's context"


def test_on_this_machine_software_opengl_belongs_to_no_gpu(cuda_on_cpu: CpuMachine) -> None:
    require("gl")
    problem = interop_problem(0)
    assert problem is not None
    assert "not CUDA device 0" in problem


def test_cuda_reads_opengl_on_a_gpu() -> None:
    """On a GPU that both use."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    if (problem := interop_problem(torch.cuda.current_device())) is not None:
        pytest.skip(problem)
    rng = np.random.default_rng(6)
    planes = random_planes(rng, 64, 96)
    reference = open_store(PlaneFormat.of(planes), "cpu")
    with sharing(planes) as store:
        for index in range(3):
            planes = random_planes(rng, 64, 96)
            for any_store in (store, reference):
                any_store.write(planes, Difference.everywhere(store.grid), stamp(index))
            with store.lease() as view, reference.lease() as expected:
                regions = regions_of(view.grid, rng, 20)
                np.testing.assert_array_equal(view.patches(regions).cpu().numpy(), expected.gather(regions))
                np.testing.assert_array_equal(view.read(3), expected.read(3))
