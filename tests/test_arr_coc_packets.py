from __future__ import annotations

import numpy as np
import pytest
from picture_stream import PictureStream, scenery

from arr_coc.allocator import AllocatorOptions, StreamAllocator
from arr_coc.packets import frame_packet_from, packet_from


@pytest.mark.parametrize("strategy", ["foveated", "mixed"])
def test_a_token_packet_is_complete_in_itself(strategy: str) -> None:
    view = PictureStream().show(scenery(9, 13))
    frame = StreamAllocator(AllocatorOptions(strategy=strategy, budget=40)).allocate(view)
    packet = packet_from(view, frame)
    assert packet.stamp == view.stamp
    assert packet.grid == view.grid
    assert packet.regions.dtype == np.int32
    assert (packet.regions == frame.allocation.regions.numpy()).all()
    assert packet.pixels.shape == (len(packet.regions), 3, 32, 32)
    for (level, row, col), pixels in zip(packet.regions.tolist(), packet.pixels, strict=True):
        shown = view.read(level)[row * 32 : row * 32 + 32, col * 32 : col * 32 + 32].transpose(2, 0, 1)
        assert (pixels[:, : shown.shape[1], : shown.shape[2]] == shown).all()
    view.release()
    assert packet.pixels.any()


def test_a_frame_packet_lends_the_frame() -> None:
    view = PictureStream().show(scenery(5, 6))
    frame = StreamAllocator().allocate(view)
    packet = frame_packet_from(view, frame)
    assert np.shares_memory(packet.image, view.read(0))
    assert packet.relevance.shape == (5, 6)
    assert packet.relevance.dtype == np.float32
    assert (packet.regions == frame.allocation.regions.numpy()).all()
