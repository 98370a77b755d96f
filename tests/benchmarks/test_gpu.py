"""The benchmark for a GPU runs, and says what it must."""

from __future__ import annotations

import json

import pytest

from benchmarks import gpu
from stream.extensions.doctor.gpu import timing
from tests.cuda_on_cpu.machine import CpuMachine


def test_the_benchmark_runs_and_leaves_nothing(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "WARM_UP", 1)
    before = cuda_on_cpu.live()
    report = gpu.run((64, 128), rounds=1, updates=150, settling=20)
    assert set(report["milliseconds"]) >= {subject for subject, _ in gpu.TARGETS_MS}
    assert report["leaks"]["ok"], report["leaks"]
    assert json.loads(json.dumps(report)) == report
    after = cuda_on_cpu.live()
    for kind in ("array", "surface", "texture", "pinned"):
        assert after[kind] == before[kind], kind


def test_targets_are_judged_by_medians() -> None:
    results = {subject: {"device": {"p50": 0.05}, "wall": {"p50": 2.0}} for subject, _ in gpu.TARGETS_MS}
    verdicts = {(entry["what"], entry["time"]): entry["reached"] for entry in gpu.target_rows(results)}
    assert verdicts[("upload", "device")]
    assert not verdicts[("gather", "device")]
    assert not verdicts[("frame", "wall")]
