"""Frames that are tensors, as the OpenGL store and a `VideoStream` on it take them."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import torch

from arr_coc.backends.gl.store import GlStore
from arr_coc.errors import ShapeError
from arr_coc.ops import VideoStream
from arr_coc.ops.video import TensorStore
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.texture.store.tensors import format_of
from tests.support.stores import shared_device
from tests.support.video import expected_levels, random_planes, stamp


def frames() -> tuple[torch.Tensor, torch.Tensor]:
    """Two that differ in four tiles, [H, W, 3]."""
    rng = np.random.default_rng(0)
    first = torch.from_numpy(rng.integers(0, 256, (96, 160, 3), np.uint8))
    second = first.clone()
    second[32:96, 64:128] = 255 - second[32:96, 64:128]
    return first, second


@pytest.mark.parametrize("layout", ["HWC", "CHW", "strided"])
def test_every_layout_gives_the_same_texture(layout: str) -> None:
    shared_device()
    first, second = frames()
    with closing(GlStore(format_of(first), Thresholds(), 1000)) as store:
        for index, frame in enumerate((first, second)):
            if layout == "CHW":
                tensor = frame.permute(2, 0, 1).contiguous()
            elif layout == "strided":
                tensor = torch.cat([frame, frame], dim=1)[:, :160]
            else:
                tensor = frame
            change = store.update_tensor(tensor, stamp(index))
        assert np.argwhere(change.dirty).tolist() == [[1, 2], [1, 3], [2, 2], [2, 3]]
        with store.lease() as view:
            levels = [view.read(level).copy() for level in range(6)]
    for level, expected in zip(levels, expected_levels(second.numpy()), strict=True):
        np.testing.assert_array_equal(level, expected)


def test_a_difference_is_written_later() -> None:
    shared_device()
    first, second = frames()
    with closing(GlStore(format_of(first), Thresholds(), 1000)) as store:
        assert isinstance(store, TensorStore)
        store.update_tensor(first, stamp(0))
        difference = store.compare_tensor(second)
        with store.lease() as view:
            np.testing.assert_array_equal(view.read(0), first)
        assert store.write_tensor(second, difference, stamp(1)).dirty.sum() == 4
        with store.lease() as view:
            np.testing.assert_array_equal(view.read(0), second)


def test_a_video_takes_tensors() -> None:
    shared_device()
    first, second = frames()
    with VideoStream((96, 160), "gl") as video:
        for frame in (first, second.permute(2, 0, 1)):
            changed = video.update(frame)
            video.update_mipmaps()
        assert changed.dirty.sum() == 4
        with video.lease() as view:
            np.testing.assert_array_equal(view.read(0), second)
        assert video.sample_foveated((0.5, 0.5), budget=8).pixels.shape[1:] == (3, 32, 32)


def test_tensors_that_do_not_fit_are_refused() -> None:
    shared_device()
    first, _ = frames()
    with closing(GlStore(format_of(first), Thresholds(), 1000)) as store:
        for wrong in (first.float(), first[:, :90], first[..., 0], first.permute(1, 0, 2)):
            with pytest.raises(ShapeError, match=r"\[96, 160, 3\] or \[3, 96, 160\]"):
                store.update_tensor(wrong, stamp(0))
    planes = random_planes(np.random.default_rng(3), 96, 160)
    with (
        closing(GlStore(PlaneFormat.of(planes), Thresholds(), 1000)) as store,
        pytest.raises(ShapeError, match="opened for layout yuv"),
    ):
        store.compare_tensor(first)
