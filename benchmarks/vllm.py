"""The plugin for vLLM beside the embedded engine: texts, cached tokens, damaged packets, answers a second.

    python -m benchmarks.vllm --vllm ENVIRONMENT/bin/vllm [--dtype bfloat16] [--parts texts,cache,damaged,speed]
        [--rounds N] [--answers N] [--packets N] [--out FILE]

vLLM and the plugin are installed in another environment (plugins/vllm/README.md). Both engines have the bundled model
and one thread. `texts`: greedy answers about 14 frames of `scene:demo`, groups of three of them, and 25 questions each
of the suites `still` and `text`, at 27 % of the tokens. `cache`: vLLM's own counters for further questions about a
frame, and for ten frames that are shown one after the other in one prompt. `damaged`: packets changed at random; the
statuses of their replies. `speed`: answers of 12 tokens by 1, 2, 4 and 8 clients at once, about frames that neither has
seen, at all, 27 and 10 % of 1,024 tokens, by processor time of the server, and by the clock. The ways take turns;
figures are medians of the rounds. On a busy machine only the ratios mean something.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import statistics
import struct
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import FrameStamp, TokenPacket, time_text
from arr_coc.video.picture_allocator import PictureAllocator
from benchmarks.batching import CLIENTS, SLOTS, model_with, packets_of, serve
from benchmarks.support.answer_ways import BUDGETS, QUERY, TEXT_TOKENS, speak_on
from benchmarks.support.client_processes import ClientProcess
from benchmarks.support.harness import write_report
from benchmarks.support.vllm_server import BLOCK_TOKENS, VllmServer
from evaluation.strategies.arr_coc import allocator_for
from evaluation.strategies.base import Ask, Budget, stamps_of
from evaluation.suites import named_suite
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.extensions.api.packet_pictures import CHUNK, packet_part, packet_png
from stream.monitor.machine import machine
from stream.sources.factory import open_source

RESULTS = Path(__file__).parent / "results" / "vllm.json"
PARTS = ("texts", "cache", "damaged", "speed")
SHARE = Budget.parse("27%")
DEMO_QUESTION = "Say what happens."
FRAMES_A_SECOND = 24
DEMO_FRAMES = 14
GROUP = 10
SUITES = (("still", 25), ("text", 25))
SEED = 5

Asked = tuple[str, Sequence[TokenPacket], str]
"""Kind, packets and question."""

Content = list[dict[str, Any]]


def content_of(packets: Sequence[TokenPacket], question: str) -> Content:
    """Message of a question about packets, each of several under its time."""
    parts: Content = []
    for packet in packets:
        if len(packets) > 1:
            parts.append({"type": "text", "text": time_text(packet.stamp.media_ns)})
        parts.append(packet_part(packet))
    return [*parts, {"type": "text", "text": question}]


def demo_packets(qwen: QwenVL, count: int) -> list[TokenPacket]:
    """Frames of the drawn stream, as many a second as let `count` fit."""
    packets: list[TokenPacket] = []
    source = open_source("scene:demo", CaptureConfig(), MonotonicClock())
    frames = [(frame.planes.planes[0].copy(), frame.media_ns) for frame in source.frames()]
    source.close()
    allocator = None
    for index in range(count):
        picture, media_ns = frames[index * (len(frames) - 1) // (count - 1)]
        ask = Ask((picture,), (media_ns / 1e9,), DEMO_QUESTION, SHARE, "sparse")
        allocator = allocator or allocator_for(qwen, ask, ask.views(qwen))
        packets.append(_tokens(allocator, picture, FrameStamp(index, media_ns, media_ns)))
    return packets


def _tokens(allocator: PictureAllocator, picture: Any, stamp: FrameStamp) -> TokenPacket:
    packet = allocator.allocate(picture, stamp)
    assert isinstance(packet, TokenPacket)
    return packet


def questions(qwen: QwenVL) -> Iterator[Asked]:
    """What both engines are asked."""
    demo = demo_packets(qwen, DEMO_FRAMES)
    yield from (("demo", [packet], DEMO_QUESTION) for packet in demo)
    yield from (("three frames", demo[begin : begin + 3], DEMO_QUESTION) for begin in range(0, DEMO_FRAMES - 2, 3))
    for suite, count in SUITES:
        for question in named_suite(suite, count).questions():
            ask = Ask(question.frames, question.times_s, question.text, SHARE, "sparse")
            allocator = allocator_for(qwen, ask, ask.views(qwen))
            pairs = zip(ask.frames, stamps_of(ask.times_s), strict=True)
            yield suite, [_tokens(allocator, frame, stamp) for frame, stamp in pairs], question.text


def texts(qwen: QwenVL, server: VllmServer) -> dict[str, Any]:
    """How many answers are equal, by kind, and those that are not."""
    session = AnswerSession(qwen, AnswerOptions("sparse", feedback=False))
    equal: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    differences = []
    for kind, packets, question in questions(qwen):
        embedded = "".join(session.answer(packets, question))
        _, text = server.chat(content_of(packets, question))
        totals[kind] += 1
        equal[kind] += text == embedded
        if text != embedded:
            differences.append({"kind": kind, "question": question, "embedded": embedded, "vllm": text})
    return {"equal": {kind: f"{equal[kind]} of {count}" for kind, count in totals.items()}, "differing": differences}


def cache(qwen: QwenVL, server: VllmServer) -> dict[str, Any]:
    """Tokens of prompts, and those that vLLM computed."""
    frames = demo_packets(qwen, GROUP)
    server.empty_caches()

    def count(packets: Sequence[TokenPacket], question: str) -> dict[str, int]:
        before = server.prompt_tokens()
        server.chat(content_of(packets, question), max_tokens=1)
        after = server.prompt_tokens()
        tokens, cached = after[0] - before[0], after[1] - before[1]
        return {"tokens": tokens, "cached": cached, "computed": tokens - cached}

    prompts = ("what moves?", "is there a red circle?", "is there a green star?")
    single_frame = [count(frames[:1], question) for question in prompts]
    # A frame that stands alone has no time before it, so the first prompt of the group shares nothing with these.
    group = [count(frames[: length + 1], "what moves?") for length in range(1, GROUP)]
    return {
        "block_tokens": BLOCK_TOKENS,
        "visual_tokens": len(frames[0].regions),
        "questions_about_one_frame": single_frame,
        "frames_of_a_prompt_2_to_10": group,
    }


def damage_statuses(qwen: QwenVL, server: VllmServer, count: int) -> dict[str, Any]:
    """Statuses of packets changed at random: anywhere, in front, or in their places under a right checksum."""
    png, numbers = packet_png(demo_packets(qwen, 2)[0]), random.Random(SEED)
    length = struct.unpack_from(">I", png, 33)[0]
    statuses: Counter[int] = Counter()
    lines = Counter[str]()
    for number in range(count):
        if number % 3 == 0:
            changed = _corrupt(png, numbers)
        elif number % 3 == 1:
            changed = _corrupt(png[:400], numbers) + png[400:]
        else:
            body = CHUNK + _corrupt(png[41 : 41 + length], numbers)
            chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
            changed = png[:33] + chunk + png[45 + length :]
        url = f"data:image/png;base64,{base64.b64encode(changed).decode()}"
        part = {"type": "image_url", "image_url": {"url": url}}
        status, text = server.chat([part, {"type": "text", "text": "what moves?"}], max_tokens=1)
        statuses[status] += 1
        if status != 200:
            lines["one line" if "\n" not in text else "several lines"] += 1
    healthy = server.chat(content_of(demo_packets(qwen, 2)[:1], DEMO_QUESTION))[0] == 200
    return {"packets": count, "statuses": dict(statuses), "errors": dict(lines), "server_answers_after": healthy}


def _corrupt(data: bytes, numbers: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(numbers.randint(1, 4)):
        at = numbers.randrange(len(changed))
        changed[at : at + numbers.randint(0, 3)] = numbers.randbytes(numbers.randint(0, 3))
    return bytes(changed)


def speed(qwen: QwenVL, server: VllmServer, tokens: int, answers: int, rounds: int) -> dict[str, Any]:
    """Answers a second of both engines, by the number of clients.

    Args:
        qwen: The embedded engine's model.
        server: vLLM with the same model.
        tokens: Visual tokens of a frame.
        answers: Answers of each client, in each round.
        rounds: Rounds, in which the engines take turns.
    """
    packets, options = packets_of(qwen, tokens, answers), AnswerOptions("sparse", Decoding(TEXT_TOKENS), feedback=False)
    requests = [[content_of([packet], QUERY) for packet in client_packets] for client_packets in packets]
    decoding = {"max_tokens": TEXT_TOKENS, "ignore_eos": True}
    rates: dict[tuple[str, int], list[float]] = {}
    equal = compared = 0
    server.chat_at_once(requests[:1], **decoding)
    with ClientProcess() as clients:
        serve(model_with(qwen, 1, options), packets[:1], 1, clients, check=False)
        for _ in range(rounds):
            for count in SLOTS:
                begun_s = time.perf_counter()
                served = serve(model_with(qwen, count, options), packets[:count], answers, clients, check=False)
                wall_s = time.perf_counter() - begun_s
                rates.setdefault(("slots", count), []).append(served.per_s)
                rates.setdefault(("slots by the clock", count), []).append(served.count / wall_s)
                server.empty_caches()
                start_s, begun_s = server.time_s, time.perf_counter()
                vllm_texts = server.chat_at_once(requests[:count], **decoding)
                wall_s, took_s = time.perf_counter() - begun_s, server.time_s - start_s
                rates.setdefault(("vllm", count), []).append(served.count / took_s)
                rates.setdefault(("vllm by the clock", count), []).append(served.count / wall_s)
                for local_texts, peer_texts in zip(served.texts, vllm_texts, strict=True):
                    compared += len(peer_texts)
                    equal += sum(
                        local.strip() == peer.strip() for local, peer in zip(local_texts, peer_texts, strict=True)
                    )
    median = {key: round(statistics.median(values), 2) for key, values in rates.items()}
    rows = [
        {
            "clients": count,
            "slots_per_cpu_s": median["slots", count],
            "vllm_per_cpu_s": median["vllm", count],
            "vllm_to_slots": round(median["vllm", count] / median["slots", count], 2),
            "slots_per_s": median["slots by the clock", count],
            "vllm_per_s": median["vllm by the clock", count],
        }
        for count in SLOTS
    ]
    return {"visual_tokens": len(packets[0][0].regions), "clients": rows, "texts_equal": f"{equal} of {compared}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, required=True, help="vLLM's command in its environment")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--answers", type=int, default=3, help="of each client, in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--packets", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    qwen = load_qwen(None, device="cpu", dtype=arguments.dtype)
    report = json.loads(arguments.out.read_text("utf-8")) if arguments.out.exists() else {"benchmark": "vllm"}
    report["machine"] = machine() | {"device": "cpu", "threads": 1, "clients": CLIENTS}
    section = report.setdefault(arguments.dtype, {})
    with (
        tempfile.TemporaryDirectory() as folder,
        VllmServer(arguments.vllm, arguments.dtype, Path(folder) / "vllm.log") as server,
    ):
        report["vllm"] = json.loads(server.request("GET", "/version")[1])["version"]
        for part in arguments.parts.split(","):
            if part == "texts":
                section[part] = texts(qwen, server)
            elif part == "cache":
                section[part] = cache(qwen, server)
            elif part == "damaged":
                section[part] = damage_statuses(qwen, server, arguments.packets)
            elif part == "speed":
                speaker = speak_on(load_qwen(None, device="cpu", dtype=arguments.dtype))
                section[part] = []
                for tokens in reversed(BUDGETS):
                    section[part].append(speed(speaker, server, tokens, arguments.answers, arguments.rounds))
                    write_report(arguments.out, report)
            else:
                parser.error(f"--parts names {', '.join(PARTS)}, got {part!r}")
            print(json.dumps({part: section[part]}, indent=1))
            write_report(arguments.out, report)


if __name__ == "__main__":
    main()
