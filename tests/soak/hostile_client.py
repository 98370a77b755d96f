"""Waiting time of an honest client for its answers while another client with a valid key is hostile.

    python -m tests.soak.hostile_client [--answers N] [--out FILE]

The answer stage runs in a separate process, with a model that takes 20 ms for an answer, so that the cost of other
clients is seen. The hostile client runs in a third process. A latency is from asking for a turn to the whole answer.
Target: the median beside any hostile client at most twice the median alone; a client that takes its turns doubles it by
right.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from arr_coc.types import FrameStamp, QueryEmbedding, TileGrid, TokenPacket, Work
from benchmarks.support.harness import write_report
from stream.answer.admission import ServerOptions
from stream.answer.memory import Reading
from stream.answer.model import AnswerStats, ClientQuestion
from stream.answer.server import AnswerServer
from stream.config import NetworkConfig
from stream.control import RunControl
from stream.errors import TransportError
from stream.monitor.machine import machine
from stream.protocol.codec import token_message
from stream.protocol.messages import (
    AnswerReply,
    Connect,
    Embed,
    ServerHello,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    encode,
)
from stream.stages.base import StageThread
from stream.transport import Link, Transport
from stream.transport.security import client_curve, make_keys, server_curve
from tests.support.events import QUESTION

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "hostile_client.json"
ANSWER_S = 0.02
CROWD = 1_000
LIMIT_S = 120.0
TARGET = 2.0
PACKET = TokenPacket(
    FrameStamp(1, 1, 1),
    TileGrid.of(480, 640),
    np.stack([np.zeros(64, np.int32), np.arange(64, dtype=np.int32) // 20, np.arange(64, dtype=np.int32) % 20], axis=1),
    np.ones(64, np.float32),
    np.zeros((64, 3, 32, 32), np.uint8),
)


class SteadyAnswerModel:
    """Model with answers of ANSWER_S in four pieces, and no work for a question."""

    model_id, knows_levels, knows_wide, known_world, allocator = "steady", True, False, None, b""
    can_glance, attention_readable, takes_device_pixels = False, False, False
    memory = None
    notice = ""

    slots = 1

    def __init__(self) -> None:
        self._open: dict[ClientQuestion, int] = {}

    def drop_client(self, client: bytes) -> None: ...

    def embed_query(self, query: str) -> QueryEmbedding:
        return QueryEmbedding(query, np.ones((max(1, len(query.split())), 64), np.float32), self.model_id)

    def check_watch(self, query: str) -> tuple[str, ...]:
        return ()

    def hold(self, client: bytes) -> None: ...

    def release(self, client: bytes) -> None:
        self._open.clear()

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        self._open = dict.fromkeys(questions, 0)

    def step(self) -> Sequence[ClientQuestion]:
        stepped = list(self._open)
        for question in stepped:
            time.sleep(ANSWER_S / 4)
            question.piece = f"{self._open[question]} "
            self._open[question] += 1
            if self._open[question] == 4:
                self.finish(question)
        return stepped

    def read_ahead(self, client: bytes, packets: Sequence[TokenPacket]) -> Reading:
        raise TransportError("a model without a memory reads nothing ahead")

    def finish(self, question: ClientQuestion) -> None:
        del self._open[question]
        question.ended, question.stats = True, AnswerStats(Work(1, 4, 1.0, 1.0, 1.0))


def serve(endpoint: str, keys: str, over: Event) -> None:
    """The answer stage's process."""
    transport, control = Transport(), RunControl()
    place = ServerOptions(endpoint, curve=server_curve(NetworkConfig(keys=keys), endpoint), shared=True)
    stage = StageThread(AnswerServer(SteadyAnswerModel, place, transport, control), control)
    stage.start()
    over.wait()
    control.cancel()
    stage.join(LIMIT_S)
    transport.close()


def be_hostile(kind: str, endpoint: str, keys: str, over: Event) -> None:
    """The hostile client's process."""
    with ExitStack() as stack:
        if kind == "1000 silent connections":
            host, port = endpoint.removeprefix("tcp://").split(":")
            for _ in range(CROWD):
                stack.enter_context(socket.create_connection((host, int(port)), LIMIT_S))
            over.wait()
            return
        context = zmq.Context()
        client = context.socket(zmq.DEALER)
        client.setsockopt(zmq.LINGER, 0)
        client.setsockopt(zmq.SNDTIMEO, 100)
        curve = client_curve(NetworkConfig(keys=keys), endpoint)
        assert curve is not None
        curve.apply(client)
        client.connect(endpoint)
        client.send(encode(Connect()))
        rng, turn = random.Random(1), 0
        while not over.is_set():
            while client.poll(1 if "turn" in kind else 0):
                head = client.recv_multipart()[0]
                turn += b"turn" in head[:16]
            with suppress(zmq.Again):
                client.send_multipart(_hostility(kind, rng))
        client.close()
        context.term()


def _hostility(kind: str, rng: random.Random) -> list[bytes]:
    if kind == "garbage":
        return [rng.randbytes(rng.randrange(1, 200)) for _ in range(rng.randrange(1, 4))]
    if kind == "questions":
        return [encode(rng.choice([Connect(), Embed(text="y " * rng.randrange(1, 500))]))]
    if kind == "turns not taken":
        return [encode(TurnRequest())]
    message, arrays = token_message(0, rng.randrange(100), PACKET, QUESTION)
    return [encode(message), *(array.tobytes() for array in arrays)]


class Honest:
    """A client that does everything as it should."""

    def __init__(self, link: Link) -> None:
        self._link = link
        link.send(Connect())
        self._until(ServerHello)

    def ask_ms(self, number: int) -> float:
        """How long one answer took."""
        start_s, reply = time.monotonic(), None
        while not isinstance(reply, AnswerReply):
            self._link.send(TurnRequest())
            turn = self._until(TurnGrant)
            self._link.send(*token_message(number, turn.turn, PACKET, QUESTION))
            reply = self._until(AnswerReply, TurnExpired)
        assert reply.answer == number
        return 1000 * (time.monotonic() - start_s)

    def _until(self, *kinds: type[Any]) -> Any:
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            received = self._link.receive(50)
            if received is not None and isinstance(received.message, kinds):
                return received.message
        raise TimeoutError(f"no {kinds[0].__name__} within {LIMIT_S:g} s")


@contextmanager
def process(target: Callable[..., None], *arguments: str) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    child = context.Process(target=target, args=(*arguments, over), daemon=True)
    child.start()
    try:
        yield
    finally:
        over.set()
        child.join(LIMIT_S)
        child.kill()


def percentiles(values_ms: list[float]) -> dict[str, float]:
    return {
        name: round(float(np.percentile(values_ms, at)), 2) for name, at in (("p50", 50), ("p95", 95), ("max", 100))
    }


def measure(kind: str | None, endpoint: str, keys: str, answers: int) -> dict[str, float]:
    """Latencies of an honest client's answers, beside a hostile one of this kind."""
    with ExitStack() as stack:
        transport = Transport()
        stack.callback(transport.close)
        curve = client_curve(NetworkConfig(keys=keys), endpoint)
        link = stack.enter_context(closing(transport.link(endpoint, curve=curve, watched=True)))
        honest = Honest(link)
        if kind is not None:
            stack.enter_context(process(be_hostile, kind, endpoint, keys))
            threading.Event().wait(3.0)  # until it has begun, and been found out
        return percentiles([honest.ask_ms(number) for number in range(answers)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=100, help="of the honest client, beside each hostile one")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    kinds = ["garbage", "questions", "packets out of turn", "turns not taken", "1000 silent connections"]
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        make_keys(Path(folder) / "keys")
        probe.bind(("127.0.0.1", 0))
        endpoint, keys = f"tcp://127.0.0.1:{probe.getsockname()[1]}", str(Path(folder) / "keys")
        probe.close()
        with process(serve, endpoint, keys):
            baseline = measure(None, endpoint, keys, arguments.answers)
            beside = {kind: measure(kind, endpoint, keys, arguments.answers) for kind in kinds}
    for figures in beside.values():
        figures["ratio"] = round(figures["p50"] / baseline["p50"], 2)
    report = {
        "benchmark": "hostile_client",
        "unit": "milliseconds from asking for a turn to the whole answer, which takes 20 ms to be spoken",
        "machine": machine(),
        "answers": arguments.answers,
        "alone": baseline,
        "beside": beside,
        "target": {"ratio of p50": TARGET},
        "met": all(figures["ratio"] <= TARGET for figures in beside.values()),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
