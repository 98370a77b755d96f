"""Handing a 1080p frame over, and what a slow consumer gets: this project beside imageZMQ and VidGear's NetGear.

    python -m benchmarks.hops [--out FILE] [--png FILE]

A hop lasts from just before the frame is given to the sender until the receiver holds it as an array, on the machine's
monotonic clock; frames come 20 ms apart, and all ways take turns. Each is measured across the boundary that it is made
for, and the peers across both: between threads, because this project keeps capture and texture in one process and hands
frames over there; and between processes, between which this project sends tokens (or, with `encode = "full"`, a frame).

A slow consumer works 100 ms on a frame of a camera that gives 30 a second and keeps none. The age of a frame is
counted from its capture until the consumer has it. Targets: the hop that a frame makes here at least 5 times shorter
than any peer's; ages here below two of the consumer's periods.
Needs `pip install --no-deps imagezmq vidgear` and what vidgear imports: colorlog, requests, simplejpeg, tqdm.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.harness import percentiles, write_report
from benchmarks.support.hop_channels import (
    END,
    Channel,
    ImageZmq,
    NetGear,
    OwnThreads,
    OwnTokens,
    OwnWholeFrames,
    Picture,
    Sender,
)
from stream.monitor.machine import machine
from stream.scenes import load_scene
from stream.transport import ipc_endpoint, private_directory

RESULTS = Path(__file__).parent / "results"
TARGET_TIMES = 5.0
TARGET_PERIODS = 2.0
GAP_S = 0.02
CAMERA_PERIOD_S = 1 / 30
CONSUMER_S = 0.1
SETTLE_S = 0.5
PORTS = itertools.count(5760)

Arrivals = list[tuple[int, int]]
"""(frame number, monotonic ns at which the receiver held it)."""


def consume(
    channel: Channel,
    work_s: float,
    opened: Callable[[], object],
    collected: Callable[[Arrivals], object],
    sender_closed: Callable[[], object],
) -> None:
    """Receive until the last frame; close this end once the sender has closed the other.

    Args:
        channel: Makes the receiver.
        work_s: Pause after each frame, as of a consumer that works on it.
        opened: Called when the receiver is open.
        collected: Called with the arrivals after the last frame.
        sender_closed: Returns when the sender has closed.
    """
    arrivals: Arrivals = []
    receiver = channel.receiver()
    opened()
    while (number := receiver.receive()) != END:
        arrivals.append((number, time.monotonic_ns()))
        if work_s:
            time.sleep(work_s)
        receiver.release()
    receiver.release()
    collected(arrivals)
    sender_closed()
    receiver.close()


def consume_in_process(channel: Channel, work_s: float, results: Connection) -> None:
    consume(channel, work_s, lambda: results.send("opened"), results.send, results.recv)


@contextmanager
def open_channel(
    channel: Channel, work_s: float, *, processes: bool
) -> Iterator[tuple[Sender, Callable[[], Arrivals]]]:
    """A sender whose receiver is open, and a function that waits for the receiver's end and returns the arrivals."""
    if processes:
        yield from _open_processes(channel, work_s)
    else:
        yield from _open_threads(channel, work_s)
    channel.close()


def _open_processes(channel: Channel, work_s: float) -> Iterator[tuple[Sender, Callable[[], Arrivals]]]:
    parent_pipe, child_pipe = multiprocessing.Pipe()
    sender = channel.sender()
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=consume_in_process, args=(channel, work_s, child_pipe), daemon=True)
    process.start()
    parent_pipe.recv()
    yield sender, parent_pipe.recv
    sender.close()
    parent_pipe.send("closed")
    process.join(5)
    process.kill()


def _open_threads(channel: Channel, work_s: float) -> Iterator[tuple[Sender, Callable[[], Arrivals]]]:
    opened, closed, results = threading.Event(), threading.Event(), queue.Queue[Arrivals]()
    sender = channel.sender()
    thread = threading.Thread(target=consume, args=(channel, work_s, opened.set, results.put, closed.wait), daemon=True)
    thread.start()
    opened.wait()
    yield sender, results.get
    sender.close()
    closed.set()
    thread.join()


def hops_us(channel: Channel, pictures: Sequence[Picture], count: int, *, processes: bool) -> list[float]:
    """Microseconds of each hop; the first tenth is not counted.

    Args:
        channel: Way of the frames.
        pictures: uint8 RGB [H, W, 3] each, sent in turns.
        count: Number of frames.
        processes: Between processes, not threads.
    """
    sent_ns: dict[int, int] = {}
    with open_channel(channel, 0.0, processes=processes) as (sender, collected):
        sender.idle(time.monotonic_ns() + round(SETTLE_S * 1e9))
        for number in [*range(count), END]:
            frame = sender.prepare(number, pictures[number % len(pictures)])
            sender.idle(time.monotonic_ns() + round(GAP_S * 1e9))
            sent_ns[number] = time.monotonic_ns()
            sender.send(number, frame)
        arrivals = collected()
    return [(at_ns - sent_ns[number]) / 1e3 for number, at_ns in arrivals if number >= count // 10]


def slow_consumer(channel: Channel, pictures: Sequence[Picture], seconds: float, *, processes: bool) -> dict[str, Any]:
    """Ages of what a consumer of 100 ms a frame receives from a camera that keeps only the newest frame.

    Args:
        channel: Way of the frames.
        pictures: uint8 RGB [H, W, 3] each, sent in turns.
        seconds: Length of the run.
        processes: Between processes, not threads.
    """
    captured_ns: dict[int, int] = {}
    period_ns = round(CAMERA_PERIOD_S * 1e9)
    with open_channel(channel, CONSUMER_S, processes=processes) as (sender, collected):
        sender.idle(time.monotonic_ns() + round(SETTLE_S * 1e9))
        start_ns = time.monotonic_ns()
        number = -1
        while (now_ns := time.monotonic_ns()) < start_ns + seconds * 1e9:
            newest = (now_ns - start_ns) // period_ns
            if newest == number:
                sender.idle(start_ns + (number + 1) * period_ns)
                continue
            number = newest
            captured_ns[number] = start_ns + number * period_ns
            sender.send(number, sender.prepare(number, pictures[number % len(pictures)]))
        offered, dropped = len(captured_ns), sender.dropped_count
        sender.send(END, sender.prepare(END, pictures[0]))
        arrivals = collected()
    at_s = [(at_ns - start_ns) / 1e9 for _, at_ns in arrivals]
    age_ms = [(at_ns - captured_ns[frame]) / 1e6 for frame, at_ns in arrivals]
    during = [age for at, age in zip(at_s, age_ms, strict=True) if at <= seconds]
    return {
        "age_ms": percentiles(during, 2),
        "first_second_ms": round(float(np.median([a for t, a in zip(at_s, age_ms, strict=True) if t <= 1])), 2),
        "last_second_ms": round(
            float(np.median([a for t, a in zip(at_s, age_ms, strict=True) if seconds - 1 <= t <= seconds])), 2
        ),
        "camera_frames": round(seconds / CAMERA_PERIOD_S),
        "given_to_the_sender": offered,
        "replaced_by_the_sender": dropped,
        "received": len(during),
        "still_waiting_at_the_end": len(age_ms) - len(during),
        "stays_below_two_periods": max(during) <= TARGET_PERIODS * CONSUMER_S * 1e3,
        "timeline": [[round(at, 3), round(age, 2)] for at, age in zip(at_s, age_ms, strict=True) if at <= seconds],
    }


def peers() -> list[Channel]:
    """Each on a separate port, because a port that was in use is not free at once."""
    zmq = [ImageZmq(next(PORTS), replies) for replies in (True, False)]
    return [*zmq, *(NetGear(next(PORTS), jpeg) for jpeg in (False, True))]


def ways(directory: Path, number: int) -> list[tuple[Channel, bool]]:
    """Every way, anew, and whether it is between processes."""
    channels: list[tuple[Channel, bool]] = [
        (OwnThreads(), False),
        (OwnTokens(ipc_endpoint(directory, f"t{number}")), True),
        (OwnWholeFrames(ipc_endpoint(directory, f"f{number}")), True),
    ]
    return [*channels, *((peer, False) for peer in peers()), *((peer, True) for peer in peers())]


def measure_hops(pictures: Sequence[Picture], rounds: int, count: int) -> list[dict[str, Any]]:
    """Hops of every way, between threads and between processes.

    Args:
        pictures: uint8 RGB [H, W, 3] each, sent in turns.
        rounds: Rounds, in which the ways take turns.
        count: Frames of a way in a round.
    """
    measured: dict[tuple[str, bool], dict[str, Any]] = {}
    with private_directory() as directory:
        for number in range(rounds):
            for channel, processes in ways(directory, number):
                entry = measured.setdefault(
                    (channel.name, processes), {"carries": channel.carries, "hops": [], "p50_of_rounds": []}
                )
                hops = hops_us(channel, pictures, count, processes=processes)
                entry["hops"] += hops
                entry["p50_of_rounds"].append(round(float(np.median(hops)), 1))
    return [
        {
            "way": name,
            "between": "processes" if processes else "threads",
            "carries": entry["carries"],
            "hop_us": percentiles(entry["hops"], 1),
            "p50_of_rounds": entry["p50_of_rounds"],
        }
        for (name, processes), entry in measured.items()
    ]


def compare_hops(hops: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratio of the quickest peer's hop to each hop here, between threads and between processes."""
    local_hops = [hop for hop in hops if hop["way"].startswith("this project")]
    ratios: dict[str, Any] = {"target_times_shorter_of_a_frame's_hop": TARGET_TIMES}
    for between in ("threads", "processes"):
        others = [hop for hop in hops if hop["between"] == between and hop not in local_hops]
        quickest = {key: min(others, key=lambda hop: hop["hop_us"][key]) for key in ("p50", "p95")}
        ratios[f"than the quickest peer between {between}"] = {
            "peer": quickest["p50"]["way"],
            "times_shorter": {
                hop["way"]: {
                    key: round(other["hop_us"][key] / hop["hop_us"][key], 2) for key, other in quickest.items()
                }
                for hop in local_hops
            },
        }
    return ratios


def measure_slow(pictures: Sequence[Picture], seconds: float) -> list[dict[str, Any]]:
    with private_directory() as directory:
        channels: list[tuple[Channel, bool]] = [
            (OwnThreads(), False),
            (OwnTokens(ipc_endpoint(directory, "slow")), True),
            *((peer, True) for peer in peers()),
        ]
        return [
            {"way": channel.name, "between": "processes" if processes else "threads"}
            | slow_consumer(channel, pictures, seconds, processes=processes)
            for channel, processes in channels
        ]


def draw(slow: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    for row in slow:
        at_s, age_ms = zip(*row["timeline"], strict=True)
        style = "-" if row["way"].startswith("this project") else "--"
        axes.plot(at_s, age_ms, style, marker=".", label=f"{row['way']} ({row['between']})")
    limit_ms = TARGET_PERIODS * CONSUMER_S * 1e3
    axes.axhline(limit_ms, color="black", linewidth=1, label="two periods of the consumer")
    axes.set(yscale="log", xlabel="time, s", ylabel="age of what the consumer receives, ms")
    axes.set_title("a consumer of 100 ms a frame, a camera of 30 frames a second")
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=60, help="frames a round and way")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the slow consumer is fed")
    parser.add_argument("--out", type=Path, default=RESULTS / "hops.json")
    parser.add_argument("--png", type=Path, default=RESULTS / "hops.png")
    options = parser.parse_args()
    if find_spec("imagezmq") is None or find_spec("vidgear") is None:
        raise SystemExit("the peers are imageZMQ and NetGear: pip install --no-deps imagezmq vidgear")
    described = machine() | {name: version(name) for name in ("imagezmq", "vidgear")}
    scene = load_scene("hd")
    pictures = [np.ascontiguousarray(scene.render(index)[..., ::-1]) for index in (10, 20, 30, 40)]
    hops = measure_hops(pictures, options.rounds, options.count)
    slow = measure_slow(pictures, options.seconds)
    report = {
        "benchmark": "hops",
        "machine": described,
        "frame": "1920x1080",
        "hops": hops,
        "comparison": compare_hops(hops),
        "slow_consumer": {
            "camera_period_ms": CAMERA_PERIOD_S * 1e3,
            "consumer_period_ms": CONSUMER_S * 1e3,
            "seconds": options.seconds,
            "ways": slow,
        },
    }
    print(table(hops, slow))
    print(json.dumps(report["comparison"], indent=2))
    write_report(options.out, report)
    draw(slow, options.png)


def table(hops: list[dict[str, Any]], slow: list[dict[str, Any]]) -> str:
    lines = [f"{'one 1080p frame, us':48}{'between':11}{'p50':>9}{'p99':>9}"]
    lines += [f"{h['way']:48}{h['between']:11}{h['hop_us']['p50']:9.0f}{h['hop_us']['p99']:9.0f}" for h in hops]
    lines += ["", f"{'slow consumer, age in ms':48}{'first s':>9}{'last s':>9}{'max':>9}{'received':>9}"]
    for row in slow:
        ages = f"{row['first_second_ms']:9.0f}{row['last_second_ms']:9.0f}{row['age_ms']['max']:9.0f}"
        lines.append(f"{row['way']:48}{ages}{row['received']:9}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
