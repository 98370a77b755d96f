"""Pixels that stay on their device: within a process, and between two (both ends are in this one here)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.types import FrameStamp, TileGrid, TokenPacket
from stream.errors import TransportError
from stream.protocol.codec import token_message, token_packet
from stream.protocol.device_pixels import IpcPixelReceiver, IpcPixelSender, LocalPixels
from stream.protocol.messages import PixelPlace, decode, encode
from tests.cuda_on_cpu.machine import LAUNCH_FAILED, CpuMachine
from tests.support.events import QUESTION


def pixels(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)


def packet(count: int) -> TokenPacket:
    regions = np.array([[0, 0, col] for col in range(count)], np.int32)
    grid = TileGrid.of(32, 32 * count)
    return TokenPacket(FrameStamp(0, 0, 0), grid, regions, np.ones(count, np.float32), pixels(count))


@pytest.fixture(params=["one process", "two processes"])
def ends(request: pytest.FixtureRequest, cuda_on_cpu: CpuMachine) -> Any:
    """A sender and a receiver."""
    if request.param == "one process":
        local_pixels = LocalPixels()
        yield local_pixels, local_pixels
        return
    sender = IpcPixelSender()
    with cuda_on_cpu.two_processes():
        yield sender, IpcPixelReceiver()
    sender.close()


def test_pixels_arrive_beside_their_message(ends: Any) -> None:
    sender, receiver = ends
    assert receiver.refusal(sender.offer()) is None
    for count in (3, 600, 5):
        source = packet(count)
        message, arrays = token_message(0, 1, source, QUESTION, pixels_at=sender.put(source.pixels))
        assert len(arrays) == 2
        arrived = token_packet(decode(encode(message)), [part.tobytes() for part in arrays], receiver.take)  # type: ignore[arg-type]
        assert isinstance(arrived.pixels, torch.Tensor)
        assert torch.equal(arrived.pixels, pixels(count))
        assert np.array_equal(arrived.host_pixels, source.host_pixels)


def test_a_link_that_shares_none_refuses_them() -> None:
    message, arrays = token_message(0, 1, packet(2), QUESTION, pixels_at=PixelPlace())
    with pytest.raises(TransportError, match="this link shares none"):
        token_packet(message, [part.tobytes() for part in arrays])


def test_pixels_that_are_gone_are_no_others() -> None:
    local_pixels = LocalPixels()
    first, second = local_pixels.put(pixels(2)), local_pixels.put(pixels(3))
    with pytest.raises(TransportError, match="packet 1 are not there"):
        local_pixels.take(first, 2)
    with pytest.raises(TransportError, match="packet 2 are not there"):
        local_pixels.take(second, 3)
    with pytest.raises(TransportError, match="not of 9 regions"):
        local_pixels.take(local_pixels.put(pixels(3)), 9)


def test_memory_that_cannot_be_opened_is_refused_with_the_reason(cuda_on_cpu: CpuMachine) -> None:
    sender, receiver = IpcPixelSender(), IpcPixelReceiver()
    offer = sender.offer()
    for wrong, reason in (
        (PixelPlace(), "needs a CUDA IPC handle"),
        (PixelPlace(handle=offer.handle, gpu=bytes(16)), "a GPU that the model's process does not see"),
        (PixelPlace(handle=bytes(64), gpu=offer.gpu), "does not share memory between processes"),
    ):
        assert reason in (receiver.refusal(wrong) or "")
        with pytest.raises(TransportError, match=reason):
            receiver.take(wrong, 1)
    with cuda_on_cpu.two_processes():
        assert receiver.refusal(offer) is None
    sender.close()
    sender.close()


def test_more_regions_than_there_are_cannot_be_read(cuda_on_cpu: CpuMachine) -> None:
    """A message may claim too many regions; memory beyond is not read."""
    sender, receiver = IpcPixelSender(), IpcPixelReceiver()
    place = sender.put(pixels(3))
    with cuda_on_cpu.two_processes(), pytest.raises(TransportError, match="cannot be read"):
        receiver.take(place, 1_000_000)
    cuda_on_cpu.fail("cuMemcpyDtoDAsync", LAUNCH_FAILED)
    with pytest.raises(TransportError, match="failed in cuMemcpyDtoDAsync"):
        receiver.take(place, 3)
    cuda_on_cpu.recover()
    sender.close()
    assert dataclasses.replace(packet(1)).host_pixels.shape == (1, 3, 32, 32)
