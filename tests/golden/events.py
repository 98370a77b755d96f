"""All events of runs in lockstep, one file each: `python -m tests.golden.events FOLDER`, with fixed arithmetic."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from stream import cli
from stream.events import Event
from stream.runtime import session

CLOCK_FIELDS = {"capture_ns", "ready_ns", "texture_ms", "allocate_ms", "held_ms", "timing", "kernel", "time"}
"""Fields of events that depend on the clock or the processor."""

ABSENT = (("fields", None), ("escalated", False), ("invalid", 0), ("shadow", None), ("matches", 0))
"""Fields of answers with a schema, of a larger model, of shadow checks and of watches, of runs without one."""

RUNS = {
    "defaults": ("scene:demo", []),
    "watches": ("scene:moving", ["--until", "Is there a red circle?", "--go-on"]),
    "memory": ("scene:cuts", ["--memory"]),
    "shadow": ("scene:cuts", ["--set", "shadow.every=2"]),
    "regions": ("scene:moving", ["--publish", "ipc://published", "--max-frames", "40"]),
    "glance": ("scene:street", ["-q", "What do the signs say?", "--glance"]),
    "adaptive": ("scene:moving", ["--budget", "adaptive", "--strategy", "mixed"]),
    "incremental": ("scene:moving", ["--encode", "incremental"]),
    "evs": ("scene:demo", ["--strategy", "evs", "--no-memory"]),
    "prune": ("scene:pan", ["--encode", "prune", "--strategy", "topk"]),
}


class EventRecorder:
    """Sink that keeps every event as JSON lines, without fields that depend on the clock."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, event: Event) -> None:
        fields = msgspec.to_builtins(event)
        if fields.get("map"):
            regions = np.frombuffer(base64.b64decode(fields["map"]["regions"]), "<i2").reshape(-1, 3)
            fields["map"] = {"regions": " ".join("/".join(map(str, region)) for region in regions.tolist())}
        for name in ("yes", "certain"):
            if name in fields:
                fields[name] = round(fields[name], 4)
        self.lines.append(stable_line({"type": event.__struct_config__.tag, **fields}))

    def close(self) -> None:
        pass


def stable_line(record: dict[str, Any]) -> str:
    """Return a record as a JSON line without the fields that depend on the clock or the processor."""
    stable_fields = {
        key: value for key, value in record.items() if key not in CLOCK_FIELDS and (key, value) not in ABSENT
    }
    memory = stable_fields.get("memory")
    if isinstance(memory, dict) and memory.get("idle") is not None:
        del memory["idle"]["seconds"]
    return json.dumps(stable_fields, ensure_ascii=False)


def record(address: str, options: list[str]) -> list[str]:
    """Return the events of a run in this process as lines. Raises RuntimeError if it fails."""
    recorder, open_sinks = EventRecorder(), session.open_sinks
    with mock.patch.object(session, "open_sinks", lambda *of, **keywords: [*open_sinks(*of, **keywords), recorder]):
        status = cli.main(["caption", address, "--max-frames", "100", *options])
    if status not in (0, 3):
        raise RuntimeError(f"status {status} of {address} {options}")
    return recorder.lines


if __name__ == "__main__":
    for name, (address, options) in RUNS.items():
        lines = record(address, options)
        Path(sys.argv[1], f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
