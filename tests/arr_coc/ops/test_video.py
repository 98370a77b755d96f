"""A texture that follows a video, on every available backend."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from arr_coc.backends.cuda.device import find_device
from arr_coc.errors import LeaseTimeout, OptionError, ShapeError, StoreError
from arr_coc.ops.texture import Texture
from arr_coc.ops.video import VideoStream
from arr_coc.texture.store.base import Backend
from tests.cuda_on_cpu.machine import CpuMachine
from tests.support.stores import BACKENDS, require
from tests.support.video import flat_planes, random_planes


@pytest.fixture(params=BACKENDS)
def video(request: pytest.FixtureRequest) -> Iterator[VideoStream]:
    require(request.param)
    with VideoStream((150, 230), request.param) as video:
        video.update(picture(0))
        yield video


def picture(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (150, 230, 3), dtype=np.uint8)


def test_only_what_changed_is_written(video: VideoStream) -> None:
    first = video.update_mipmaps()
    assert first is not None
    assert first.dirty.all()
    frame = picture(0)
    frame[40:60, 100:120] ^= 255
    difference = video.update(frame)
    changed = np.zeros((5, 8), bool)
    changed[1, 3] = True
    np.testing.assert_array_equal(difference.dirty, changed)
    change = video.update_mipmaps()
    assert change is not None
    np.testing.assert_array_equal(change.dirty, changed)
    with video.lease() as view:
        assert view.versions.frame[1, 3] == 1
        assert view.versions.frame.sum() == 1
        for level, expected in enumerate(Texture(frame).levels):
            np.testing.assert_array_equal(view.read(level), expected.permute(1, 2, 0).numpy())


def test_a_foveated_view_equals_the_references(video: VideoStream) -> None:
    for options in ({}, {"e0": 0.2}, {"M0": 0.1, "e0": 0.2}):
        view, expected = (source.sample_foveated((0.3, 0.8), 12, **options) for source in (video, Texture(picture(0))))
        assert torch.equal(view.regions, expected.regions)
        assert torch.equal(view.pixels, expected.pixels)
        assert (view.M0, view.e0) == (expected.M0, expected.e0)


def test_a_frame_is_taken_once_and_a_newer_one_replaces_it(video: VideoStream) -> None:
    video.update(picture(1))
    video.update(picture(2))
    assert torch.equal(
        video.sample_foveated((0.5, 0.5), 40).pixels, Texture(picture(2)).sample_foveated((0.5, 0.5), 40).pixels
    )
    assert video.update_mipmaps() is None


def test_a_write_that_readers_hold_up_can_be_done_again() -> None:
    with VideoStream((64, 64), "cpu", lease_timeout_ms=10) as video:
        video.update(np.zeros((64, 64, 3), np.uint8))
        video.update_mipmaps()
        video.update(np.full((64, 64, 3), 9, np.uint8))
        with video.lease() as view:
            with pytest.raises(LeaseTimeout):
                video.update_mipmaps()
            assert not view.read(0).any()
        change = video.update_mipmaps()
        assert change is not None
        assert change.dirty.all()


def test_decoders_planes_are_taken_as_they_are() -> None:
    planes = random_planes(np.random.default_rng(0), 150, 230)
    with VideoStream((150, 230)) as video:
        assert video.update(planes).dirty_share == 1
        assert video.sample_foveated((0.5, 0.5), 20).pixels.dtype == torch.uint8
        with pytest.raises(ShapeError, match="the store was opened for"):
            video.update(picture(0))


@pytest.mark.parametrize("planar", [False, True])
def test_frames_on_the_textures_device_are_taken_there(cuda_on_cpu: CpuMachine, planar: bool) -> None:
    """Nothing of them comes to the host but the map of what changed, and the tokens stay as well."""
    with VideoStream((150, 230), "cuda") as video, cuda_on_cpu.calls() as calls:
        for seed in (0, 1):
            frame = torch.from_numpy(picture(seed))
            video.update(frame.permute(2, 0, 1).contiguous() if planar else frame)
            change = video.update_mipmaps()
            assert change is not None
            view = video.sample_foveated((0.3, 0.8), 12)
            assert torch.equal(view.pixels, Texture(picture(seed)).sample_foveated((0.3, 0.8), 12).pixels)
        assert video.update(frame).dirty_share == 0
    assert "cuLaunchKernel upload_frame" in calls
    assert calls.count("cuMemcpyDtoHAsync") == calls.count("cuLaunchKernel compare_frame") == 2


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_all_tiles_of_a_frame_are_taken_on_request(cuda: None, backend: Backend) -> None:
    frame = torch.from_numpy(picture(0))
    with VideoStream(resolution=(150, 230), backend=backend) as video:
        frame = frame.to(find_device().place) if backend == "cuda" else frame
        video.update(frame)
        video.update_mipmaps()
        assert video.update(frame).dirty_share == 0
        assert video.update(frame, delta_only=False).dirty_share == 1
        change = video.update_mipmaps()
        assert change is not None
        assert change.dirty.all()
        with video.lease() as view:
            np.testing.assert_array_equal(view.read(0)[:150, :230], picture(0))


def test_frames_elsewhere_are_brought_to_the_host() -> None:
    with VideoStream((150, 230), "cpu") as video:
        video.update(torch.from_numpy(picture(0)))
        video.update_mipmaps()
        with video.lease() as view:
            np.testing.assert_array_equal(view.read(0)[:150, :230], picture(0))


def test_other_sizes_and_other_things_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"at least 1x1 pixels, got \(0, 5\)"):
        VideoStream((0, 5))
    with VideoStream((150, 230)) as video:
        with pytest.raises(ShapeError, match="150 rows and 230 columns, got 230 and 150"):
            video.update(flat_planes(230, 150))
        with pytest.raises(ShapeError, match="uint8 samples"):
            video.update(np.zeros((150, 230, 3), np.float32))  # type: ignore[arg-type]
        with pytest.raises(StoreError, match="has no frame yet"):
            video.sample_foveated((0.5, 0.5))
        with pytest.raises(OptionError, match="a fixation is"):
            video.sample_foveated((0.5, 1.5))


def test_nothing_goes_on_after_closing() -> None:
    video = VideoStream((150, 230), "cpu")
    video.update(picture(0))
    video.close()
    video.close()
    assert video.update_mipmaps() is None
    for use in (lambda: video.update(picture(0)), lambda: video.sample_foveated((0.5, 0.5)), video.lease):
        with pytest.raises(StoreError, match="the video is closed"):
            use()


def test_an_unknown_backend_is_refused_with_the_first_frame() -> None:
    with pytest.raises(StoreError, match="unknown texture backend 'metal'"):
        VideoStream((150, 230), "metal").update(picture(0))  # type: ignore[arg-type]
