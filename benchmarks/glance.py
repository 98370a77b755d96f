"""Glances: what one adds to the time to first token, over ipc and over TCP, and how many answers need one.

    python -m benchmarks.glance [--frames N] [--out FILE]

The bundled model without its allocator, in a separate process behind the answer protocol; frames of 1024x1024 and of
512x512 pixels, each new to the model. Time to first token counts from the request of a turn, with an allocated frame at
hand, to the first piece of text; with a glance that is the overview, its reply, the second allocation, and the packet.
Three ways take turns with every frame, at the same budget: no glance and no overview; an overview in the packet and no
glance; a glance. A round trip is a glance's time at the client without encoding and prefill at the server.

The share is of the answers of a run of one question, 30 frames a second.
Targets: a glance adds at most 40 % if it runs, and nothing if it does not; at most 5 % of the answers have one.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.allocation.packets import overview_packet, packet_from
from arr_coc.hub import ALLOCATOR_FOLDER, bundled_model_path
from arr_coc.types import FramePlanes, FrameStamp, QueryEmbedding, TokenPacket
from arr_coc.video.picture_allocator import AllocatedFrame, FrameAllocator
from benchmarks.support.answer_ways import pictures
from benchmarks.support.harness import percentiles, write_report
from stream.answer.client import AnswerClient
from stream.answer.connection import AnswerEndpoint, ServerConnection
from stream.answer.request import ClientOptions, GlanceOutcome, Outcome
from stream.clock import MonotonicClock
from stream.config import AllocateConfig, AnswerConfig, CaptureConfig, Config
from stream.events import Answer, AnswerDeltaEvent
from stream.monitor.machine import machine
from stream.runtime.answer_worker import serve_answers
from stream.runtime.frame_stages import run_in_threads
from stream.transport import Transport, ipc_endpoint, private_directory

RESULTS = Path(__file__).parent / "results" / "glance.json"
QUERY = "What do you see?"
BUDGETS = {1024: 273, 512: 69}
"""Visual tokens of a square picture of this side in pixels: 27 % of its tiles."""

SHARE_FPS, SHARE_FRAMES, SHARE_EVERY_S = 30, 300, 0.1
WARM_UP = 3
LIMIT_S = 120.0
TARGETS = {"added_percent": 40.0, "answers_percent": 5.0}
WAYS = ("plain", "overview", "glance")


class WayClient:
    """One way to ask a server about frames, with its own allocator. Each frame begins an epoch: nothing is known of
    it."""

    def __init__(
        self, way: str, budget: int, client: AnswerClient, connection: ServerConnection, embedding: QueryEmbedding
    ) -> None:
        self._way, self._budget, self._client, self._connection = way, budget, client, connection
        glance = None if way == "plain" else GlanceOptions()
        self._frames = FrameAllocator(AllocatorOptions(budget=budget, glance=glance))
        self._frames.allocator.set_query(embedding)

    def ask(self, planes: FramePlanes, stamp: FrameStamp) -> dict[str, float]:
        """Ask about a frame; return what it took in milliseconds."""
        allocated = self._frames.allocate(planes, stamp, "resolution")
        packet, glance = allocated.packet, None
        start_s = time.perf_counter()
        self._client.request_turn(time.monotonic_ns())
        self._outcomes_until(lambda: self._client.may_send)
        if self._way == "glance":
            packet, glance = self._glance(allocated)
        self._client.send_request(packet, "every", time.monotonic_ns())
        first = self._outcomes_until(lambda: any(isinstance(event, AnswerDeltaEvent) for event in self._outcomes))
        first_ms = (time.perf_counter() - start_s) * 1e3
        events = first + self._outcomes_until(lambda: not self._client.busy)
        (answer,) = (event for event in events if isinstance(event, Answer))
        assert self._budget - 2 <= answer.tokens_used <= self._budget, "a cover may leave two tokens"
        assert answer.timing is not None
        times = {
            "first_token_ms": first_ms,
            "encode_ms": answer.timing.encode_ms,
            "prefill_ms": answer.timing.prefill_ms,
        }
        return times | (glance or {})

    def _glance(self, allocated: AllocatedFrame) -> tuple[TokenPacket, dict[str, float]]:
        """Return the packet of the tokens that a glance chose, and what the glance took."""
        allocator = self._frames.allocator
        with self._frames.texture.lease() as view:
            overview = overview_packet(view, allocated.allocation.glance_tokens)
        allocator.on_glance()
        self._client.send_glance(overview, time.monotonic_ns())
        outcomes = self._outcomes_until(lambda: not self._client.busy)
        (outcome,) = (outcome for outcome in outcomes if isinstance(outcome, GlanceOutcome))
        timing = outcome.event.timing
        assert timing is not None
        start_s = time.perf_counter()
        allocator.apply_glance(outcome.feedback)
        with self._frames.texture.lease() as view:
            packet = packet_from(view, allocator.reallocate(view))
        return packet, {
            "glance_ms": timing.total_ms,
            "glance_encode_ms": timing.encode_ms,
            "glance_prefill_ms": timing.prefill_ms,
            "round_trip_ms": timing.total_ms - timing.encode_ms - timing.prefill_ms,
            "reallocate_ms": (time.perf_counter() - start_s) * 1e3,
        }

    def _outcomes_until(self, condition: Callable[[], bool]) -> list[Outcome]:
        self._outcomes: list[Outcome] = []
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            self._outcomes += self._connection.exchange(1)
            assert time.monotonic() < until_s, "the server is silent"
        return self._outcomes


def measure_sizes(endpoint: str, frames: int) -> dict[str, Any]:
    """Return the figures at one server, by size."""
    return {str(side_px): measure_ways(side_px, endpoint, frames) for side_px in BUDGETS}


def measure_ways(side_px: int, endpoint: str, frames: int) -> dict[str, Any]:
    """Return the figures of all ways at one server, by turns."""
    transport, options, clock = Transport(), ClientOptions(), MonotonicClock()
    client, address = AnswerClient(QUERY, options), AnswerEndpoint(endpoint, supervised=False)
    with closing(transport), closing(ServerConnection(client, address, options, transport, clock)) as connection:
        outcomes: list[Outcome] = []
        while not client.ready:
            outcomes += connection.exchange(50)
        (embedding,) = (outcome for outcome in outcomes if isinstance(outcome, QueryEmbedding))
        ways = {way: WayClient(way, BUDGETS[side_px], client, connection, embedding) for way in WAYS}
        times: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        smaller = max(BUDGETS) // side_px
        for number, picture in enumerate(pictures(frames + WARM_UP)):
            turn = number % len(WAYS)
            for place, way in enumerate(WAYS[turn:] + WAYS[:turn]):  # none is shown what another one was
                stamp = FrameStamp(number, len(WAYS) * number + place, 0, 0)
                figures = ways[way].ask(FramePlanes("rgb", (picture[::smaller, ::smaller] ^ np.uint8(place),)), stamp)
                if number >= WARM_UP:
                    times[way].append(figures)
    return {way: summary(rows) for way, rows in times.items()} | added_percents(times)


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    return {name: percentiles([row[name] for row in rows], 2) for name in rows[0]}


def added_percents(times: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Return by how much a way is later than another, frame by frame: the median, in percent."""

    def delay_percent(way: str, than: str) -> float:
        pairs = zip(times[way], times[than], strict=True)
        return round(
            100 * statistics.median(row["first_token_ms"] / other["first_token_ms"] - 1 for row, other in pairs), 1
        )

    return {
        "overview_added_percent": delay_percent("overview", "plain"),
        "glance_added_percent": delay_percent("glance", "plain"),
        "glance_added_to_overview_percent": delay_percent("glance", "overview"),
    }


def share_of_answers(model: str) -> dict[str, Any]:
    """Return how many answers about one question have a glance, of a run that is asked ten times a second."""
    config = Config(
        source=f"scene:paced-720p{SHARE_FPS}",
        capture=CaptureConfig(size="320x192", max_frames=SHARE_FRAMES),
        answer=AnswerConfig(model=model, query=QUERY, every_s=SHARE_EVERY_S, max_tokens=1),
        allocate=AllocateConfig(budget="27%"),
    )
    answers = [event for event in run_in_threads(config).run() if isinstance(event, Answer)]
    glances = sum(answer.glances for answer in answers)
    percent = round(100 * glances / len(answers), 2)
    return {"frames": SHARE_FRAMES, "answers": len(answers), "glances": glances, "percent": percent}


def serve(endpoint: str, model: str, ready: ProcessEvent) -> None:
    config = Config(answer=AnswerConfig(model=model, max_tokens=4))
    serve_answers(config, endpoint, ready.set)


@contextmanager
def server_process(endpoint: str, model: str) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=serve, args=(endpoint, model, ready))
    process.start()
    try:
        assert ready.wait(LIMIT_S), "the server has not loaded its model"
        yield
    finally:
        process.terminate()
        process.join()


@contextmanager
def untrained_model() -> Iterator[str]:
    """The folder of the bundled model without its allocator, while the block lasts."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "untrained"
        shutil.copytree(bundled_model_path(), copy, ignore=shutil.ignore_patterns(ALLOCATOR_FOLDER))
        yield str(copy)


def free_tcp_endpoint() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{bound.getsockname()[1]}"


def measure(frames: int) -> dict[str, Any]:
    """Return the whole report."""
    report: dict[str, Any] = {
        "benchmark": "glance",
        "machine": machine(),
        "budgets": BUDGETS,
        "frames": frames,
        "targets": TARGETS,
    }
    with untrained_model() as model:
        with private_directory() as directory:
            endpoint = ipc_endpoint(directory)
            with server_process(endpoint, model):
                report["ipc"] = measure_sizes(endpoint, frames)
        endpoint = free_tcp_endpoint()
        with server_process(endpoint, model):
            report["tcp"] = measure_sizes(endpoint, frames)
        report["share_of_answers"] = share_of_answers(model)
    return report


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(prog="benchmarks.glance", description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=30, help="frames that are measured")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report = measure(arguments.frames)
    write_report(arguments.out, report)
    for link, side_px in itertools.product(("ipc", "tcp"), BUDGETS):
        figures = report[link][str(side_px)]
        plain, glance = figures["plain"]["first_token_ms"]["p50"], figures["glance"]["first_token_ms"]["p50"]
        print(
            f"{link}, {side_px} px: first token {plain:.0f} ms, with a glance {glance:.0f} ms "
            f"({figures['glance_added_percent']:+} %), with an overview alone {figures['overview_added_percent']:+} %; "
            f"round trip {figures['glance']['round_trip_ms']['p50']:.1f} ms"
        )
    share = report["share_of_answers"]
    print(f"{share['glances']} glances before {share['answers']} answers: {share['percent']} %")


if __name__ == "__main__":
    main()
