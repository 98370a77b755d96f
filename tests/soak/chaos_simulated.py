"""Ten hours in virtual time in which answer servers and frame processes die at random: service and growth.

    python -m tests.soak.chaos_simulated [--hours 10] [--cameras 6] [--servers 3] [--every 12] [--seed 1] [--out FILE]

The program's own answer server, server pool, client, scheduler of answers and supervisor run over simulated links
(`tests/soak/chaos_fleet.py`); nothing else is simulated of them. Every 12 s on average a server or a frame
process is killed, stopped for up to 20 s, or asked to end. A server is started again after up to 10 s, and loads its
model for 3 to 10 s. One camera reads a film in lockstep, in which no answer may be missing; its frame process is left
alone. One answer in a hundred begins with a silence of 12 s, for which clients must not leave the server.

Faults: an answer that holds what another camera has shown, or an answer to its question; one that is missing in
lockstep, or comes twice; a server that was left although it did not stand still; more clients at a server than there
are cameras; a camera without an answer for SILENCE_MAX_S although it and a server could work; Python objects or threads
that grow after the first hour.
"""

from __future__ import annotations

import argparse
import gc
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.support.harness import write_report
from stream.monitor.machine import machine
from tests.soak.chaos_fleet import ChaosFleet

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos_simulated.json"
HOUR_S = 3600.0
OBJECTS_GROW_MAX = 0.03
"""Share of the objects after the first hour: the work in flight differs from moment to moment."""


def measure(hours: float, cameras: int, servers: int, every_s: float, seed: int) -> dict[str, Any]:
    """Run a fleet for `hours` and report on it after each hour and at the end."""
    begin_s, others = time.monotonic(), threading.active_count()
    fleet = ChaosFleet(cameras, servers, every_s=every_s, seed=seed)
    looks: list[dict[str, Any]] = []
    rest_s = hours * HOUR_S
    while rest_s > 0:
        fleet.run(span_s := min(rest_s, HOUR_S))
        rest_s -= span_s
        gc.collect()
        looks.append(
            {
                "objects": len(gc.get_objects()),
                "threads": threading.active_count(),
                "memory_mib": round(psutil.Process().memory_info().rss / 2**20, 1),
                "clients": [server.clients for server in fleet.servers],
                "answers": [camera.answers for camera in fleet.cameras],
            }
        )
        print(f"{hours - rest_s / HOUR_S:g} h:", json.dumps(looks[-1]), dict(fleet.deeds), flush=True)
    fleet.close()
    faults = fleet.faults()
    if looks[-1]["objects"] > looks[0]["objects"] * (1 + OBJECTS_GROW_MAX):
        faults.append(f"objects grew from {looks[0]['objects']} to {looks[-1]['objects']}")
    if max(look["threads"] for look in looks) > others + servers + 2 * cameras:
        faults.append(f"threads: {[look['threads'] for look in looks]}")
    if threading.active_count() > others:
        faults.append(f"{threading.active_count() - others} threads are left")
    return {
        "seconds": round(time.monotonic() - begin_s),
        "deeds": dict(sorted(fleet.deeds.items())),
        "most_clients": fleet.most_clients,
        "server_starts": [server.starts for server in fleet.servers],
        "cameras": [
            {
                "answers": camera.answers,
                "restarts": camera.restarts,
                "crash_loops": camera.crash_loops,
                "servers_lost": camera.notices["no answers"] + camera.notices["lifeless"],
                "of_these_lifeless": camera.notices["lifeless"],
                "longest_silence_s": round(camera.longest_silence_s, 1),
            }
            for camera in fleet.cameras
        ],
        "hours": looks,
        "faults": faults,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--cameras", type=int, default=6)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--every", type=float, default=12.0, help="mean seconds between two deeds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    for name in ("hours", "cameras", "servers", "every"):
        if not 0 < getattr(options, name) < float("inf"):
            parser.error(f"--{name} is a positive number, got {getattr(options, name):g}")
    about = {"hours_simulated": options.hours, "servers": options.servers, "every_s": options.every}
    findings = measure(options.hours, options.cameras, options.servers, options.every, options.seed)
    print(json.dumps(findings, indent=2))
    write_report(
        options.out,
        {"benchmark": "chaos_simulated", "seed": options.seed, **about, **findings, "machine": machine()},
    )
    return 1 if findings["faults"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
