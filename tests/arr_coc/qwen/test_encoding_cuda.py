"""Incremental encoding on a CUDA device: equal to the CPU, to sparse if all is stale, with as few synchronisations."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

from arr_coc.qwen.encoding import IncrementalEncoder, encode_packet
from arr_coc.qwen.qwenvl import QwenVL
from tests.arr_coc.qwen.test_encoding import ALONE, EVERY, MIXED, World, assert_same, incremental, sparse
from tests.support.models import FAMILIES, tiny_qwen

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def on_cuda(family: str, dtype: torch.dtype = torch.float32) -> QwenVL:
    qwen = tiny_qwen(family)
    qwen.model.to("cuda", dtype)
    return qwen


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frame_of_stale_regions_equals_sparse(family: str, dtype: torch.dtype) -> None:
    qwen, world, encoder = on_cuda(family, dtype), World(), IncrementalEncoder(ALONE)
    for _ in range(2):
        world.change(*MIXED)
        packet = world.packet(MIXED)
        assert_same(incremental(encoder, qwen, packet), sparse(qwen, packet))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sequence_of_frames_equals_the_cpus(family: str) -> None:
    on_cpu, on_gpu, world = tiny_qwen(family), on_cuda(family), World()
    encoders = IncrementalEncoder(), IncrementalEncoder()
    for frame in range(8):
        names = (MIXED if frame % 4 > 1 else EVERY)[frame:]
        world.change(*names[frame : frame + 4])
        packet = world.packet(names)
        expected, tokens = incremental(encoders[0], on_cpu, packet), incremental(encoders[1], on_gpu, packet)
        assert_same(tokens.map(lambda rows: rows.cpu()), expected, atol=1e-4)
        assert encoders[0].report.encoded == encoders[1].report.encoded


@pytest.mark.parametrize("family", FAMILIES)
def test_it_waits_for_the_device_no_more_often_than_sparse(family: str) -> None:
    qwen, world, encoder = on_cuda(family), World(), IncrementalEncoder()
    for _ in range(2):
        world.change(EVERY[0])
        incremental(encoder, qwen, world.packet(EVERY))
    world.change(EVERY[1])
    packet = world.packet(EVERY)
    often = waits(lambda: encode_packet(qwen, packet, "incremental", encoder))
    assert often <= waits(lambda: encode_packet(qwen, packet, "sparse"))


def waits(work: Callable[[], object]) -> int:
    """Return the number of device synchronisations in `work`, as torch's check counts them."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in recorded)
