"""Results of CUDA kernels from a texture on the device: patches, differences and channels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import arr_coc.relevance.channels
from arr_coc.backends.cuda.device import find_device
from arr_coc.backends.cuda.store import CudaStore
from arr_coc.backends.registry import open_store
from arr_coc.errors import DeviceLost, OptionError, ShapeError, StoreError
from arr_coc.relevance.channels import TextureArrayCache, device_texture_array, texture_array
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.texture.store.tensors import format_of
from arr_coc.types import REGION_SHAPES
from stream.extensions.doctor.gpu.kernels import compare_channels, compare_difference, on_device, view_of
from stream.extensions.doctor.gpu.model import compare_allocator
from stream.extensions.doctor.gpu.reference import random_picture, regions_of, rgb_planes
from tests.cuda_on_cpu.machine import LAUNCH_FAILED, CpuMachine
from tests.support.video import random_planes, stamp

MANY = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])

Picture = npt.NDArray[np.uint8]


# patches


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_patches_as_halves_are_normalised_bytes(cuda: None, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    with view_of(random_picture(rng, 90, 150)) as view:
        regions = regions_of(view.grid, rng, 20)
        exact = torch.from_numpy(view.gather(regions))
        expected = ((exact.float() / 255 - 0.5) / 0.5).to(dtype)
        for codes in (regions, on_device(regions)):
            patches = view.patches(codes, dtype)
            assert patches.dtype == dtype
            assert torch.equal(patches.cpu(), expected)


def test_patches_refuse_what_they_cannot_take(cuda: None) -> None:
    with view_of(random_picture(np.random.default_rng(1), 64, 64)) as view:
        with pytest.raises(ShapeError, match="uint8, float16 or bfloat16"):
            view.patches(np.zeros((1, 3), np.int64), torch.float32)
        with pytest.raises(ShapeError, match="outside a grid"):
            view.patches(np.array([[0, 2, 0]]))
        with pytest.raises(ShapeError, match=r"int64 \[K, 3\]"):
            view.patches(on_device(np.zeros((1, 3), np.int32)))
        with pytest.raises(ShapeError, match=r"lies on meta and the texture on .*move it with \.to\("):
            view.patches(torch.zeros((1, 3), dtype=torch.int64, device="meta"))
        assert view.patches(np.zeros((0, 3), np.int64)).shape == (0, 3, 32, 32)


def test_regions_on_the_device_that_lie_outside_show_the_nearest_texels(cuda: None) -> None:
    """They are not checked on the way, so no access may leave the texture."""
    with view_of(random_picture(np.random.default_rng(6), 70, 100)) as view:
        outside = np.array([[40, 0, 0], [-3, 1, 1], [0, 99, 99], [0, -50, 1]])
        patches = view.patches(on_device(outside)).cpu().numpy()
        expected = view.gather(np.array([[len(REGION_SHAPES) - 1, 0, 0], [0, 1, 1]]))
        level0 = view.read(0)
    np.testing.assert_array_equal(patches[:2], expected)
    np.testing.assert_array_equal(patches[2], np.broadcast_to(level0[-1, -1][:, None, None], (3, 32, 32)))
    np.testing.assert_array_equal(patches[3], np.broadcast_to(level0[0, 32:64].T[:, None], (3, 32, 32)))


# frames that are on the device


@MANY
@given(
    size=st.tuples(st.integers(1, 130), st.integers(1, 200)),
    seed=st.integers(0, 1 << 20),
    noise=st.sampled_from([1, 3, 4, 5, 9, 60]),
    layout=st.sampled_from(["HWC", "CHW", "strided"]),
)
def test_a_frame_as_a_tensor_does_what_the_same_frame_does_on_the_host(
    cuda: None, size: tuple[int, int], seed: int, noise: int, layout: str
) -> None:
    compare_difference(size, seed, noise, layout)


def test_frames_may_come_from_both_sides_by_turns(cuda: None) -> None:
    """Tiles that only the device has are copied before the host compares."""
    rng = np.random.default_rng(2)
    first, second = random_picture(rng, 70, 100), random_picture(rng, 70, 100)
    store = CudaStore(format_of(torch.from_numpy(first)), Thresholds(), 20)
    store.update(rgb_planes(first), stamp(0))
    assert store.update_tensor(on_device(first), stamp(1)).dirty_share == 0
    assert store.update_tensor(on_device(second), stamp(2)).dirty.all()
    assert store.update(rgb_planes(second.copy()), stamp(3)).dirty_share == 0
    assert store.update_tensor(on_device(first), stamp(4)).dirty.all()
    np.testing.assert_array_equal(store.held_planes.planes[0], first)
    assert store.update_tensor(on_device(second), stamp(5, epoch=5)).dirty.all()


def test_a_frame_that_is_taken_halfway_is_never_shown(cuda_on_cpu: CpuMachine) -> None:
    frame = np.zeros((64, 64, 3), np.uint8)
    store = CudaStore(format_of(torch.from_numpy(frame)), Thresholds(), 20)
    store.update_tensor(on_device(frame), stamp(0))
    cuda_on_cpu.fail("cuLaunchKernel upload_frame", LAUNCH_FAILED)
    with pytest.raises(DeviceLost, match="failed in cuLaunchKernel"):
        store.update_tensor(on_device(frame), stamp(1, epoch=1))
    with pytest.raises(DeviceLost), store.lease():
        pass


def test_thresholds_are_the_stores_own(cuda: None) -> None:
    first = np.full((64, 64, 3), 100, np.uint8)
    second = first.copy()
    second[:32, :32] += 4
    second[40:42, 40:42, 2] += 20
    for thresholds, count in ((Thresholds(), 2), (Thresholds(mean=4), 1), (Thresholds(mean=4, largest=20), 0)):
        store = CudaStore(format_of(torch.from_numpy(first)), thresholds, 20)
        store.update_tensor(on_device(first), stamp(0))
        assert store.update_tensor(on_device(second), stamp(1)).dirty.sum() == count


@pytest.mark.parametrize(("low", "high"), [(4, 5), (3, 4), (5, 6)])
def test_a_mean_that_lies_between_is_rounded_as_on_the_host(cuda: None, low: int, high: int) -> None:
    first = np.full((32, 32, 3), 100, np.uint8)
    second = first.copy()
    second[:, :16, 1] += np.uint8(low)
    second[:, 16:, 1] += np.uint8(high)
    for limit in range(3, 8):
        dirty = []
        for name in ("cpu", "cuda"):
            store = open_store(PlaneFormat.of(rgb_planes(first)), name, thresholds=Thresholds(limit, 255))
            if isinstance(store, CudaStore):
                store.update_tensor(on_device(first), stamp(0))
                dirty.append(store.update_tensor(on_device(second), stamp(1)).dirty_share)
            else:
                store.update(rgb_planes(first), stamp(0))
                dirty.append(store.update(rgb_planes(second), stamp(1)).dirty_share)
        assert dirty[0] == dirty[1]


def test_tensors_that_are_no_frames_of_the_store_are_refused(cuda: None) -> None:
    frame = torch.zeros(64, 96, 3, dtype=torch.uint8, device=find_device().place)
    store = CudaStore(format_of(frame), Thresholds(), 20)
    for wrong in (frame.float(), frame[:, :90], frame[..., 0], frame.permute(1, 0, 2)):
        with pytest.raises(ShapeError, match=r"\[64, 96, 3\] or \[3, 64, 96\]"):
            store.update_tensor(wrong, stamp(0))
    with pytest.raises(ShapeError, match="the frame lies on meta"):
        store.update_tensor(frame.to("meta"), stamp(0))
    planes = random_planes(np.random.default_rng(3), 64, 96)
    with pytest.raises(ShapeError, match="opened for layout yuv"):
        CudaStore(PlaneFormat.of(planes), Thresholds(), 20).update_tensor(frame, stamp(0))


def test_the_format_of_a_tensor() -> None:
    assert format_of(torch.zeros(20, 30, 3, dtype=torch.uint8)) == format_of(torch.zeros(3, 20, 30, dtype=torch.uint8))
    for wrong in (torch.zeros(3, 20, 30), torch.zeros(4, 20, 30, dtype=torch.uint8), torch.zeros(3, 0, 3).byte()):
        with pytest.raises(ShapeError, match=r"\[H, W, 3\] or \[3, H, W\]"):
            format_of(wrong)


# channels


@MANY
@given(
    size=st.tuples(st.integers(1, 200), st.integers(1, 300)),
    seed=st.integers(0, 1 << 20),
    kind=st.sampled_from(["noise", "soft"]),
)
def test_channels_equal_those_of_the_host(cuda: None, size: tuple[int, int], seed: int, kind: str) -> None:
    compare_channels(size, seed, kind)


@pytest.mark.parametrize("size", [(200, 300), (96, 96), (33, 31)])
def test_forty_channels_are_computed_on_the_device(cuda: None, size: tuple[int, int]) -> None:
    with view_of(random_picture(np.random.default_rng(3), *size, "shapes")) as view:
        texture = device_texture_array(view, "full40+text", TextureArrayCache())
        expected, core = texture_array(view, "full40+text"), texture_array(view)
        luma, host = view.luma(), cv2.cvtColor(view.read(1), cv2.COLOR_RGB2GRAY)
    assert texture.channels.device == luma.device == find_device().place
    assert torch.equal(luma.cpu(), torch.from_numpy(host).float())
    exact = [*range(9), 10, 12, 16, *range(17, 40)]
    assert torch.equal(texture.channels.cpu()[exact], expected.channels[exact])
    assert torch.equal(texture.entropy.cpu(), expected.entropy)
    assert torch.equal(texture.appearance.cpu(), core.appearance)
    torch.testing.assert_close(texture.channels.cpu(), expected.channels, rtol=0, atol=1e-4)


def test_a_flat_picture_has_neither_edges_nor_entropy(cuda: None) -> None:
    with view_of(np.full((96, 96, 3), 200, np.uint8)) as view:
        channels, entropy = view.texture_array()
    assert (channels[5:12] == 0).all()
    assert (entropy == 0).all()


def test_the_documented_example_runs(cuda: None) -> None:
    """On a smaller frame, because a device on the CPU is slow."""
    text = (Path(__file__).resolve().parents[4] / "docs" / "gpu.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    for large, small in (("1080, 1920", "64, 128"), ('"cuda"', f'"{find_device().place}"'), ("273", "3")):
        assert large in code
        code = code.replace(large, small)
    names: dict[str, torch.Tensor] = {}
    exec(code, names)
    assert names["patches"].shape == (3, 3, 32, 32)
    assert (names["patches"] == -1).all()


@pytest.mark.parametrize("channels", ["core13", "full40"])
@pytest.mark.usefixtures("cuda")
def test_the_allocator_may_score_on_the_device(channels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def on_the_device() -> Iterator[None]:
        with monkeypatch.context() as patched:
            patched.setattr(arr_coc.relevance.channels, "edge_means", None)
            yield

    compare_allocator(channels, on_the_device)


def test_sampling_refuses_what_it_cannot_take(cuda: None) -> None:
    points = on_device(np.zeros((4, 3), np.float32))
    with view_of(np.zeros((32, 32, 3), np.uint8)) as view:
        for wrong in (points[:, :2], points.double(), points.T, points[0]):
            with pytest.raises(ShapeError, match=r"points are contiguous float32 \[n, 3\]"):
                view.sample(wrong)
        with pytest.raises(ShapeError, match="the tensor of points lies on meta"):
            view.sample(points.to("meta"))
        pair = on_device(np.ones((4, 2), np.float32))
        with pytest.raises(ShapeError, match="4 points and 3 footprints"):
            view.sample_along(pair, pair[:3])
        for width_px in (0.0, -1.0, float("inf"), float("nan")):
            with pytest.raises(OptionError, match="positive number of texels"):
                view.sample_along(pair, pair, width_px)
    with pytest.raises(StoreError, match="lease has ended"):
        view.sample(points)
