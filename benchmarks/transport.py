"""Time of one hop between two stages, with another process decoding beside it.

    python -m benchmarks.transport [--out FILE]

A hop is timed from just before `send` to the moment when the receiver holds the decoded message, a packet's arrays
included, on the machine's monotonic clock. Messages come 5 ms apart, so that every hop wakes a receiver that waits.
What else the machine does shows in `late_sleep`, how late plain sleeps woke beside the hops.
Targets: p99 of a descriptor at most 300 µs over inproc and 600 µs over ipc; p95 of a
TokenPacket of 273 tokens at most 1.5 ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.types import FramePacket, FrameStamp, Question, TileGrid, TokenPacket
from benchmarks.support.harness import percentiles, write_report
from stream.monitor.machine import machine
from stream.protocol.buffers import SharedFrameReader, SharedFrameWriter
from stream.protocol.codec import frame_message, frame_packet, token_message, token_packet
from stream.protocol.messages import Cancel, Credit, FrameCaptured, FramePacketMessage, TokenPacketMessage
from stream.transport import Envelope, Link, Transport, ipc_endpoint, private_directory

RESULTS = Path(__file__).parent / "results" / "transport.json"
PERIOD_S = 0.005
TOKENS = 273
GRID = TileGrid.of(1080, 1920)
LIMIT_MS = 120_000
TARGETS_US = {"descriptor inproc": ("p99", 300), "descriptor ipc": ("p99", 600), "tokens ipc": ("p95", 1500)}


def answer_hops(transport: Transport, endpoint: str, snapshot: int | None) -> None:
    """The receiving end: says of every message how long it was on its way, in the media time of a Frame."""
    link = transport.link(endpoint)
    reader = (
        None if snapshot is None else SharedFrameReader(os.open(f"/proc/{os.getppid()}/fd/{snapshot}", os.O_RDONLY))
    )
    link.send(Credit())
    while (received := link.receive(LIMIT_MS)) is not None and not isinstance(received.message, Cancel):
        sent_ns = open_message(received, reader)
        now_ns = time.monotonic_ns()
        link.send(FrameCaptured(slot=0, frame_index=0, media_ns=now_ns - sent_ns, capture_ns=now_ns))
    link.close()


def open_message(received: Envelope, reader: SharedFrameReader | None) -> int:
    """Read the message as the answer stage would; returns the time of sending."""
    message = received.message
    if isinstance(message, TokenPacketMessage):
        return token_packet(message, received.parts).stamp.capture_ns
    if isinstance(message, FramePacketMessage):
        image = None if reader is None else reader.read(message.grid.padded_height_px, message.grid.padded_width_px)
        return frame_packet(message, received.parts, image).stamp.capture_ns
    assert isinstance(message, FrameCaptured)
    return message.capture_ns


def answer_in_process(endpoint: str, snapshot: int) -> None:
    transport = Transport()
    answer_hops(transport, endpoint, snapshot)
    transport.close()


def decode_forever(ready: Event) -> None:
    """Load like an answer process: multiplications of vectors with weights, and a little Python."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    hidden, weights = torch.randn(1, 1024), torch.randn(24, 1024, 1024) / 32
    while True:
        for weight in weights:
            hidden = torch.nn.functional.silu(hidden @ weight)
        ready.set()


@contextmanager
def decoding_beside() -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=decode_forever, args=(ready,), daemon=True)
    process.start()
    ready.wait()
    try:
        yield
    finally:
        process.kill()
        process.join()


@contextmanager
def linked_threads() -> Iterator[tuple[Link, SharedFrameWriter | None]]:
    transport = Transport()
    link = transport.link("inproc://hops", bind=True)
    thread = threading.Thread(target=answer_hops, args=(transport, "inproc://hops", None))
    thread.start()
    link.receive(LIMIT_MS)
    yield link, None
    link.send(Cancel())
    thread.join()
    link.close()
    transport.close()


@contextmanager
def linked_processes() -> Iterator[tuple[Link, SharedFrameWriter | None]]:
    transport, snapshot = Transport(), SharedFrameWriter()
    with private_directory() as directory:
        endpoint = ipc_endpoint(directory)
        link = transport.link(endpoint, bind=True)
        process = multiprocessing.get_context("spawn").Process(
            target=answer_in_process, args=(endpoint, snapshot.descriptor)
        )
        process.start()
        link.receive(LIMIT_MS)
        yield link, snapshot
        link.send(Cancel())
        process.join()
        link.close()
    transport.close()
    snapshot.close()


def measure(link: Link, send: Callable[[int], None], count: int) -> dict[str, dict[str, float]]:
    """Hops of `count` messages in microseconds, and how late plain sleeps woke; the first tenth is not counted."""
    hops_us, late_us = [], []
    for _ in range(count):
        send(time.monotonic_ns())
        received = link.receive(LIMIT_MS)
        assert received is not None
        assert isinstance(received.message, FrameCaptured)
        hops_us.append(received.message.media_ns / 1e3)
        slept_ns = time.monotonic_ns()
        time.sleep(PERIOD_S)
        late_us.append((time.monotonic_ns() - slept_ns) / 1e3 - PERIOD_S * 1e6)
    return {"hop": percentiles(hops_us[count // 10 :], 1), "late_sleep": percentiles(late_us, 1)}


def median_of(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """The median over rounds of every figure, and every round's p99."""
    medians = {
        part: {name: statistics.median(measured[part][name] for measured in rounds) for name in figures}
        for part, figures in rounds[0].items()
    }
    return medians | {"p99_of_rounds": [measured["hop"]["p99"] for measured in rounds]}


def senders(link: Link, snapshot: SharedFrameWriter | None) -> dict[str, Callable[[int], None]]:
    """Payloads: a frame's descriptor, 273 tokens of 3 KB, and a whole 1080p frame."""
    random = np.random.default_rng(0)
    regions, relevance = np.zeros((TOKENS, 3), np.int32), np.ones(TOKENS, np.float32)
    pixels = random.integers(0, 256, (TOKENS, 3, 32, 32), dtype=np.uint8)
    image = random.integers(0, 256, (GRID.padded_height_px, GRID.padded_width_px, 3), dtype=np.uint8)
    tokens = TokenPacket(FrameStamp(0, 0, 0), GRID, regions, relevance, pixels)
    frame_packet = FramePacket(FrameStamp(0, 0, 0), GRID, regions, np.ones(GRID.shape, np.float32), image)

    def descriptor(now_ns: int) -> None:
        link.send(FrameCaptured(slot=0, frame_index=0, media_ns=0, capture_ns=now_ns))

    def token(now_ns: int) -> None:
        link.send(*token_message(0, 0, dataclasses.replace(tokens, stamp=FrameStamp(0, 0, now_ns)), Question("what?")))

    def frame(now_ns: int) -> None:
        if snapshot is not None:
            snapshot.write(frame_packet.image)
        packet = dataclasses.replace(frame_packet, stamp=FrameStamp(0, 0, now_ns))
        link.send(*frame_message(0, 0, packet, Question("what?"), in_snapshot=snapshot is not None))

    return {"descriptor": descriptor, "tokens": token, "frame": frame}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="their median counts; every p99 is reported")
    parser.add_argument("--count", type=int, default=400, help="messages a round")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    hops: dict[str, Any] = {}
    with decoding_beside():
        for transport, linked in (("inproc", linked_threads), ("ipc", linked_processes)):
            with linked() as (link, snapshot):
                for payload, send in senders(link, snapshot).items():
                    rounds = [measure(link, send, arguments.count) for _ in range(arguments.rounds)]
                    hops[f"{payload} {transport}"] = median_of(rounds)
    for name, (percentile, limit_us) in TARGETS_US.items():
        hops[name] |= {"target": {percentile: limit_us}, "met": hops[name]["hop"][percentile] <= limit_us}
    report = {
        "benchmark": "transport",
        "unit": "microseconds of one hop, another process decoding beside it",
        "machine": machine(),
        "hops": hops,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
