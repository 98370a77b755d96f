"""Many cameras and several answer servers, simulated: their capacity, and the effect of the death of one.

    python -m tests.soak.fleet_simulation [--figures FILE] [--every SECONDS] [--seconds N] [--out FILE]

The costs of encoding and prefilling several new answers, and of one more token for several, are measured here with the
bundled model on one thread, 63 visual and 12 text tokens, in processor time. So is the overhead of a server in a step
(`message_ms`, by slots and by answers at once): one client asks it alone, then four do, and the model's time is
subtracted. `--figures` gives the costs of another machine instead, as JSON: {"name", "begin_ms": {"1": …,
"8": …}, "step_ms": {"1": …, "8": …}, "message_ms": {"1": {"1": …}, "8": {"1": …, "4": …}}, "tokens", "slots"}. Beside
them stand those of a GPU, which are an estimate.

The simulation is compared with measurements: eight clients that ask without a pause, by slots (`batching.json`),
and paced cameras (`fleet.json`). They do not enter its costs. Target: answers a second within 15 %.

A server is *full* if the worst camera gets less than 0.9 of its answers, or the first text of one answer in twenty
comes later than a second after it was due; `first` says which of the two comes first with a tenth more cameras.
`one_more`: how many cameras more one more server serves. `death`: one server of several dies at 70 % of their cameras,
for a minute. Figures are medians of simulations that begin by chance.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import Question, TokenPacket
from benchmarks.batching import model_with, packets_of, serve
from benchmarks.support.answer_ways import QUERY, TEXT_TOKENS, speak_on
from benchmarks.support.client_processes import ClientProcess
from benchmarks.support.harness import write_report
from stream.answer.model import ClientQuestion
from stream.answer.qwen import QwenAnswerModel
from stream.monitor.machine import machine
from tests.soak.fleet_model import Costs, Fleet, Outage

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results"
RESULTS = FOLDER / "fleet_simulation.json"
COUNTS = (1, 2, 4, 8)
VISUAL_TOKENS = 63
SERVERS = (1, 2, 4, 10)
MOST_CAMERAS = 1000
LEAST_SHARE, LATEST_FIRST_S = 0.9, 1.0
WITHIN = 0.15
SEEDS = (0, 1, 2)
ALONE_ANSWERS = 4
"""Of each client, for each measurement of the cost of messages."""
ASKING = 4
"""Clients of the second measurement of the cost of messages; the simulation is compared with eight."""

GPU_ESTIMATE = {
    "name": "Qwen3-VL-2B on a data-center GPU (estimate, not measured)",
    "begin_ms": {"1": 15, "8": 80},
    "step_ms": {"1": 2.5, "8": 3.0},
    "message_ms": {"8": {"1": 0.1, "8": 0.8}},
    "tokens": 40,
    "slots": 8,
}
"""273 visual tokens in bfloat16: the weights are read once a step, and launches take about as long."""


def costs_of(figures: dict[str, Any]) -> Costs:
    """Costs from JSON."""
    begin, step = ({int(count): float(ms) for count, ms in figures[key].items()} for key in ("begin_ms", "step_ms"))
    slots = figures["slots"]
    by_slots = {int(count): costs_ms for count, costs_ms in figures.get("message_ms", {}).items()}
    slot_count = max((count for count in by_slots if slots > 1 or count == 1), default=None)
    message = {} if slot_count is None else {int(count): float(ms) for count, ms in by_slots[slot_count].items()}
    return Costs(begin, step, figures["tokens"], slots, message)


def measured(rounds: int = 12) -> dict[str, Any]:
    """Figures of the bundled model on one thread of this machine: medians."""
    torch.set_num_threads(1)
    qwen = speak_on(load_qwen(None, device="cpu", dtype="float32"))
    packets, options = packets_of(qwen, VISUAL_TOKENS, ALONE_ANSWERS), AnswerOptions("sparse", Decoding(TEXT_TOKENS))
    model = QwenAnswerModel(AnswerSession(qwen, options, COUNTS[-1]))
    begin: dict[int, list[float]] = {count: [] for count in COUNTS}
    step: dict[int, list[float]] = {count: [] for count in COUNTS}
    servers = {slots: model_with(qwen, slots, options) for slots in (1, COUNTS[-1])}
    serving_ms: dict[tuple[int, int], list[float]] = {(1, 1): [], (COUNTS[-1], 1): [], (COUNTS[-1], ASKING): []}
    tokens = 0
    with ClientProcess() as clients:
        for number in range(rounds + 1):
            for count in COUNTS:
                ends = together(model, [client_packets[0] for client_packets in packets[:count]])
                tokens = len(ends) - 1
                if number:  # the first round warms up
                    begin[count].append(1e3 * (ends[1] - ends[0]))
                    step[count] += [1e3 * (b - a) for a, b in pairwise(ends[1:])]
            for (slots, count), times_ms in serving_ms.items():
                served = serve(servers[slots], packets[:count], ALONE_ANSWERS, clients, check=False)
                if number:
                    times_ms.append(1e3 * served.took_s / ALONE_ANSWERS)
    begin_ms, step_ms = (
        {count: statistics.median(values) for count, values in samples_ms.items()} for samples_ms in (begin, step)
    )
    message_ms: dict[str, dict[str, float]] = {}
    for (slots, count), times_ms in serving_ms.items():
        beside_ms = statistics.median(times_ms) - begin_ms[count] - (tokens - 1) * step_ms[count]
        message_ms.setdefault(str(slots), {})[str(count)] = round(max(0.0, beside_ms / tokens), 2)
    return {
        "name": f"bundled model, one thread, {len(packets[0][0].regions)} visual tokens",
        **{
            name: {str(count): round(ms, 2) for count, ms in samples_ms.items()}
            for name, samples_ms in (("begin_ms", begin_ms), ("step_ms", step_ms))
        },
        "message_ms": message_ms,
        "tokens": tokens,
        "slots": COUNTS[-1],
    }


def together(model: QwenAnswerModel, packets: Sequence[TokenPacket]) -> list[float]:
    """Processor time at the beginning of answers about packets that begin together, and after each of their tokens."""
    questions = [ClientQuestion(bytes([index]), packet, Question(QUERY)) for index, packet in enumerate(packets)]
    for question in questions:
        model.hold(question.client)
    ends = [time.thread_time()]
    model.ask(questions)
    ends.append(time.thread_time())
    while not all(question.ended for question in questions):
        model.step()
        ends.append(time.thread_time())
    for question in questions:
        model.drop_client(question.client)  # a prompt that was read would be kept
    return ends


def compared(figures: dict[str, Any], every_s: float) -> list[dict[str, Any]]:
    """Simulated answers a second beside the measured ones, if a benchmark has written some."""
    rows = []

    def add(case: str, measured_hz: float, simulated: float) -> None:
        difference = simulated / measured_hz - 1
        row = {
            "case": case,
            "measured_hz": measured_hz,
            "simulated_hz": round(simulated, 2),
            "apart": round(difference, 3),
        }
        rows.append(row | {"within": abs(difference) <= WITHIN})

    batching = FOLDER / "batching.json"
    if batching.is_file():
        for row in json.loads(batching.read_text())[f"tokens_{VISUAL_TOKENS}_text_{TEXT_TOKENS}"]["slots"]:
            costs = costs_of(figures | {"slots": row["slots"]})
            simulation = Fleet(costs, 8, 1, every_s=1e-3).run(60, warm_s=5).figures()
            add(f"8 clients without a pause, slots: {row['slots']}", row["answers_per_s"], simulation["answers_hz"])
    fleet = FOLDER / "fleet.json"
    if fleet.is_file():
        report = json.loads(fleet.read_text())
        costs = costs_of(figures | {"slots": report["slots"] or figures["slots"]})
        for phase in report["phases"]:
            simulation = Fleet(costs, phase["cameras"], 1, report["every_s"]).run(240, warm_s=20).figures()
            add(f"{phase['cameras']} paced cameras", phase["answers_per_s"], simulation["answers_hz"])
    return rows


def holds(figures: dict[str, float]) -> bool:
    return figures["share_worst"] >= LEAST_SHARE and figures["p95_first_s"] <= LATEST_FIRST_S


def most_cameras(figure: Callable[[int], dict[str, float]], likely: int) -> int:
    """The most cameras that are served well, by halving, to a hundredth: between none and twice the `likely`.
    MOST_CAMERAS stands for that many or more."""
    if likely > MOST_CAMERAS and holds(figure(MOST_CAMERAS)):
        return MOST_CAMERAS
    low, high = 0, min(MOST_CAMERAS, 2 * likely)
    while high - low > max(1, likely // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(figure(middle)) else (low, middle)
    return low


def law(figures: dict[str, Any], every_s: float, seconds: float) -> list[dict[str, Any]]:
    """For each number of servers: the most cameras, the first failure with more, the gain of one more server, and the
    effect of a death."""
    costs, rows = costs_of(figures), []

    def simulated(cameras: int, servers: int, outages: tuple[Outage, ...] = ()) -> dict[str, float]:
        runs = [
            Fleet(costs, cameras, servers, every_s, seed=seed).run(seconds, warm_s=seconds / 6, outages=outages)
            for seed in SEEDS
        ]
        all_figures = [run.figures() for run in runs]
        return {name: statistics.median(run_figures[name] for run_figures in all_figures) for name in all_figures[0]}

    @cache
    def most_of(servers: int) -> int:
        turns_s = costs.begin_s(costs.slots) + (costs.tokens - 1) * costs.step_s(costs.slots)
        return most_cameras(
            lambda cameras: simulated(cameras, servers), round(servers * every_s * costs.slots / turns_s)
        )

    for servers in SERVERS:
        most = most_of(servers)
        full = most < MOST_CAMERAS
        row: dict[str, Any] = {"servers": servers, "cameras": most, "a_server": round(most / servers, 1)}
        row |= {name: round(value, 3) for name, value in simulated(max(1, most), servers).items()}
        row["first"] = fails_first(simulated(max(most + 1, round(1.1 * most)), servers)) if full else None
        row["one_more"] = most_of(servers + 1) - most if full else None
        if servers > 1 and most:
            middle = seconds / 2
            death = simulated(max(1, round(0.7 * most)), servers, (Outage(0, middle, middle + 60),))
            row["death"] = {name: round(death[name], 3) for name in ("lost", "p95_first_s", "share_worst")}
        rows.append(row)
    return rows


def fails_first(beyond: dict[str, float]) -> str:
    """Which of the two limits servers break that have too many cameras."""
    late = beyond["p95_first_s"] > LATEST_FIRST_S
    return "first text" if late and beyond["share_worst"] >= LEAST_SHARE else "share"


def table(rows: list[dict[str, Any]]) -> str:
    """The report as text."""
    lines = [
        f"{'servers':>8}{'cameras':>9}{'answers/s':>11}{'p95 first, s':>14}{'busy':>6}{'one more':>10}  "
        "fails first; a death"
    ]
    for row in rows:
        death, one_more = row.get("death"), row["one_more"]
        losses = "" if death is None else f"; {death['lost']:.0f} lost, p95 first {death['p95_first_s']:.2f} s"
        lines.append(
            f"{row['servers']:8}{row['cameras']:9}{row['answers_hz']:11.1f}{row['p95_first_s']:14.2f}"
            f"{row['busy_share']:6.0%}{'' if one_more is None else f'+{one_more}':>10}  "
            f"{row['first'] or 'nothing'}{losses}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, help="of another machine, as JSON")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between the answers of a camera")
    parser.add_argument("--seconds", type=float, default=120.0, help="that are simulated")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    local_figures = json.loads(arguments.figures.read_text()) if arguments.figures else measured()
    report: dict[str, Any] = {"benchmark": "fleet_simulation", "machine": machine(), "every_s": arguments.every}
    report["compared"] = [] if arguments.figures else compared(local_figures, arguments.every)
    for row in report["compared"]:
        verdict = "met" if row["within"] else "MISSED"
        print(f"{verdict:>6}  {row['case']}: measured {row['measured_hz']}, simulated {row['simulated_hz']} a second")
    report["cases"] = []
    for figures in (local_figures, GPU_ESTIMATE):
        rows = law(figures, arguments.every, arguments.seconds)
        report["cases"].append({"figures": figures, "servers": rows})
        print(f"\n{figures['name']}, an answer every {arguments.every:g} s\n{table(rows)}")
    write_report(arguments.out, report)
    print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
    main()
