"""Answers together: answers a second of a server with 1, 2, 4 and 8 slots, asked by eight clients.

    python -m benchmarks.batching [--answers N] [--rounds N] [--device cuda] [--out FILE]

The answer server runs with the bundled model on one thread. Eight clients in another process, each with frames from
its own drawn stream, ask again as soon as they are answered. Checks are standing queries without answers. Times are
processor time of the server's thread (on CUDA wall time), so that other programs change them little. The ways take
turns; figures are medians of the rounds. Every text is compared with that of a lone session.

Targets, eight slots against one, with twelve tokens of text: 2.2 times the answers at 63 visual tokens, 1.25 times at
273, every text the same; one client alone takes no longer with eight slots than with one.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import FrameStamp, TokenPacket
from arr_coc.video.picture_allocator import PictureAllocator
from benchmarks.support.answer_ways import QUERY, TEXT_TOKENS, pictures, speak_on
from benchmarks.support.client_processes import LIMIT_S, ClientOptions, ClientProcess
from benchmarks.support.harness import write_report
from stream.answer.admission import ServerOptions
from stream.answer.model import AnswerModel
from stream.answer.qwen import QwenAnswerModel
from stream.answer.server import AnswerServer
from stream.control import CancelledError, RunControl
from stream.monitor.machine import machine
from stream.transport import Transport, ipc_endpoint, private_directory

RESULTS = Path(__file__).parent / "results" / "batching.json"
CLIENTS = 8
SLOTS = (1, 2, 4, 8)
CASES = ((63, TEXT_TOKENS), (63, 32), (273, TEXT_TOKENS))
"""Visual tokens, and tokens of text."""

TARGETS = {(63, TEXT_TOKENS): 2.2, (273, TEXT_TOKENS): 1.25}
ALONE_TARGET = 1.05
"""Largest ratio of a single client's times with eight slots and one: the noise of a measurement."""
CHECK = "is there a red circle?"


@dataclass(frozen=True, slots=True)
class ServingTime:
    """Time of a server for a number of answers or checks, in seconds, and their texts by client."""

    took_s: float
    count: int
    texts: tuple[tuple[str, ...], ...]

    @property
    def per_s(self) -> float:
        return self.count / self.took_s


class ServerThread:
    """An answer server in a thread."""

    def __init__(self, load: Callable[[], AnswerModel], endpoint: str, *, on_cuda: bool) -> None:
        self.endpoint = endpoint
        self._transport = Transport()
        self._on_cuda = on_cuda
        self._control = RunControl()
        self._ready = threading.Event()
        options = ServerOptions(endpoint, shared=True, on_ready=self._ready.set)
        self._server = AnswerServer(load, options, self._transport, self._control)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> ServerThread:
        self._thread.start()
        self._ready.wait(LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._control.cancel()
        self._thread.join(LIMIT_S)
        self._transport.close()

    def _run(self) -> None:
        with suppress(CancelledError):
            self._server.run()

    @property
    def time_s(self) -> float:
        """Processor time of the thread; on CUDA wall time."""
        if self._on_cuda:
            return time.perf_counter()
        assert self._thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))


def serve(
    model: AnswerModel,
    packets: Sequence[Sequence[TokenPacket]],
    answers: int,
    clients: ClientProcess,
    *,
    check: bool,
    on_cuda: bool = False,
) -> ServingTime:
    """Let one client for each list of packets ask `answers` times.

    Args:
        model: The server's model.
        packets: Frames of each client.
        answers: Questions of each client.
        clients: Process of the clients.
        check: Ask a yes/no question in place of one that is answered in words.
        on_cuda: Measure wall time, not the server's processor time.
    """
    with private_directory() as folder, ServerThread(lambda: model, ipc_endpoint(folder), on_cuda=on_cuda) as server:
        clients.connect(ClientOptions(server.endpoint, packets, QUERY, CHECK if check else None))
        start_s = server.time_s
        texts = clients.ask(answers)
        took_s = server.time_s - start_s
    return ServingTime(took_s, answers * len(packets), texts)


def packets_of(qwen: QwenVL, tokens: int, answers: int) -> list[list[TokenPacket]]:
    """Frames for each client, all different."""
    frames = deque(pictures(CLIENTS * answers))
    options = AllocatorOptions(budget=tokens, explore=0.0)
    return [
        [
            PictureAllocator(qwen, QUERY, options, "sparse").allocate(frames.popleft(), FrameStamp(number, 0, 0))
            for number in range(answers)
        ]
        for _ in range(CLIENTS)
    ]


def model_with(qwen: QwenVL, slots: int, options: AnswerOptions) -> AnswerModel:
    return QwenAnswerModel(AnswerSession(qwen, options, slots))


def lone_texts(
    qwen: QwenVL, packets: Sequence[Sequence[TokenPacket]], options: AnswerOptions
) -> tuple[tuple[str, ...], ...]:
    """Answers of a lone session about each packet."""
    session = AnswerSession(qwen, options)
    return tuple(
        tuple("".join(session.answer(packet, QUERY)) for packet in client_packets) for client_packets in packets
    )


def measure(
    qwen: QwenVL, clients: ClientProcess, tokens: int, text_tokens: int, answers: int, rounds: int
) -> dict[str, Any]:
    """Answers and checks a second by slots, and of a client alone.

    Args:
        qwen: The model.
        clients: Process of the clients.
        tokens: Visual tokens of a frame.
        text_tokens: Tokens of an answer.
        answers: Answers of each client, in each round.
        rounds: Rounds, in which the numbers of slots take turns.
    """
    packets, options = packets_of(qwen, tokens, answers), AnswerOptions("sparse", Decoding(text_tokens))
    expected, on_cuda = lone_texts(qwen, packets, options), qwen.device.type == "cuda"
    rates: dict[tuple[str, int], list[float]] = {}
    equal = compared = 0
    for slots in SLOTS:
        serve(model_with(qwen, slots, options), packets, 1, clients, check=False)
    for _ in range(rounds):
        for slots in SLOTS:
            model = model_with(qwen, slots, options)
            served = serve(model, packets, answers, clients, check=False, on_cuda=on_cuda)
            single = serve(model, packets[:1], answers, clients, check=False, on_cuda=on_cuda)
            rates.setdefault(("answers", slots), []).append(served.per_s)
            rates.setdefault(("alone", slots), []).append(single.per_s)
            if slots in (SLOTS[0], SLOTS[-1]) and text_tokens == TEXT_TOKENS:
                checked = serve(model, packets, answers, clients, check=True, on_cuda=on_cuda)
                rates.setdefault(("checks", slots), []).append(checked.per_s)
            pairs = [
                pair
                for run in (served, single)
                for texts, lone in zip(run.texts, expected, strict=False)
                for pair in zip(texts, lone, strict=True)
            ]
            compared += len(pairs)
            equal += sum(text == reference for text, reference in pairs)
    median = {key: statistics.median(values) for key, values in rates.items()}
    names = ("answers", "checks", "alone")
    rows = [
        {"slots": slots}
        | {f"{name}_per_s": round(median[name, slots], 2) for name in names if (name, slots) in median}
        | {
            f"{name}_ratio": round(median[name, slots] / median[name, 1], 3)
            for name in names
            if (name, slots) in median
        }
        for slots in SLOTS
    ]
    ratio, slower = median["answers", SLOTS[-1]] / median["answers", 1], median["alone", 1] / median["alone", SLOTS[-1]]
    target = TARGETS.get((tokens, text_tokens))
    return {
        "visual_tokens": len(packets[0][0].regions),
        "text_tokens": text_tokens,
        "slots": rows,
        "texts_equal": f"{equal} of {compared}",
        "targets": {
            **({} if target is None else {f"answers a second, {target:g} times": ratio >= target}),
            "every text the same": equal == compared,
            f"a client alone, at most {ALONE_TARGET:g} times as long": slower <= ALONE_TARGET,
        },
    }


def table(result: dict[str, Any]) -> str:
    """As it is printed."""
    lines = [
        f"{result['visual_tokens']} visual tokens, {result['text_tokens']} of text; "
        f"texts equal: {result['texts_equal']}"
    ]
    lines.append(f"{'slots':>6}" + "".join(f"{name + '/s':>12}{'ratio':>7}" for name in ("answers", "checks", "alone")))
    for row in result["slots"]:
        figures = ((row.get(f"{name}_per_s"), row.get(f"{name}_ratio")) for name in ("answers", "checks", "alone"))
        cells = (" " * 19 if rate is None else f"{rate:12.1f}{ratio:7.2f}" for rate, ratio in figures)
        lines.append(f"{row['slots']:6}" + "".join(cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=4, help="of each client, in each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    qwen = speak_on(load_qwen(None, device=arguments.device, dtype="auto" if arguments.device == "cuda" else "float32"))
    report: dict[str, Any] = {
        "benchmark": "batching",
        "machine": machine() | {"device": arguments.device, "threads": 1},
        "clients": CLIENTS,
    }
    with ClientProcess() as clients:
        for tokens, text_tokens in CASES:
            result = measure(qwen, clients, tokens, text_tokens, arguments.answers, arguments.rounds)
            report[f"tokens_{tokens}_text_{text_tokens}"] = result
            print(table(result), "\n")
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            write_report(arguments.out, report)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
