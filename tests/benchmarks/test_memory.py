"""The benchmarks of the visual memory: their pictures, ways and ratios, on small pictures."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from benchmarks import memory, memory_live
from benchmarks.support.memory_ways import OTHER_QUERY, AnswerFigures, Memory, Snapshots
from benchmarks.support.moving_camera import MovingCamera, SceneName, changed_share

SIZE = (512, 320)


@cache
def scenes_qwen() -> QwenVL:
    return load_qwen(None, device="cpu")


@pytest.mark.parametrize(
    ("scene", "percent"),
    [("still", 0), ("still street", 0), ("noise", 0), ("1 %", 1), ("5 %", 5), ("everything", 100)],
)
def test_as_many_tiles_change_between_two_answers_as_the_scene_says(scene: SceneName, percent: float) -> None:
    camera = MovingCamera(scene)
    for at_s in (0.0, 2.0, 12.0):
        changed = 100 * changed_share(camera.picture(at_s), camera.picture(at_s + memory.EVERY_S))
        assert changed == pytest.approx(percent, rel=0.15)


def test_a_sensor_s_noise_is_another_one_in_each_frame() -> None:
    camera = MovingCamera("noise", SIZE)
    first, second = (camera.picture(at_s).astype(int) for at_s in (0.0, 1.0))
    assert 1 < np.std(first - second) < 4


def test_each_way_answers_about_the_same_pictures() -> None:
    ways = memory.make_ways(scenes_qwen(), 4)
    runs = memory.measure_scene(ways, MovingCamera("noise", SIZE), 2)
    assert {name: len(figures) for name, figures in runs.items()} == dict.fromkeys(ways, 2)
    first = {name: figures[0] for name, figures in runs.items()}
    assert first[memory.MEMORY].prefilled_tokens < first[memory.SNAPSHOT].prefilled_tokens
    assert first[memory.MEMORY].idle_ms == first[memory.SNAPSHOT].idle_ms == 0 < first[memory.IDLE].idle_ms
    assert all(figures.first_token_ms >= figures.encode_ms + figures.prefill_ms for figures in first.values())


def test_a_snapshot_of_a_still_picture_reuses_its_prompt() -> None:
    way = Snapshots(scenes_qwen(), 4)
    camera = MovingCamera("still", SIZE)
    figures = []
    for number in range(4):
        way.update(camera.picture(0.0), 2.0 * number)
        figures.append(way.answer())
    assert figures[-1].prefilled_tokens < figures[0].prefilled_tokens / 3


def test_a_typed_question_leaves_the_standing_one() -> None:
    ways = memory.make_ways(scenes_qwen(), 4)
    runs = memory.measure_typed(ways, MovingCamera("1 %", SIZE), 2)
    assert all(len(figures) == 1 for figures in runs.values())
    way = ways[memory.IDLE]
    assert isinstance(way, Memory)
    assert way.stream.query != OTHER_QUERY


def test_logits_of_a_key_frame_equal_those_of_a_fresh_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MovingCamera, "picture", lambda self, at_s: MovingCamera("still", SIZE)._ground)
    monkeypatch.setattr(memory, "LOGIT_QUERIES", (memory.QUERY,))
    report = memory.measure_logits(scenes_qwen(), SIZE, 1)
    figures = report["1 %"][memory.MEMORY]
    assert figures["questions"] == figures["equal_argmax"] == 1
    assert figures["max_difference"] < 1e-3


def test_refining_and_growth_count_tokens() -> None:
    refining = memory.measure_refining(scenes_qwen(), SIZE)
    assert 0 <= refining["after_each_s"][0] <= refining["full_resolution_tokens"] <= refining["tiles"]
    growth = memory.measure_growth(scenes_qwen(), SIZE, 3)
    assert len(growth["encode_ms"]) == len(growth["held_tokens"]) == 3


def figures(first_ms: float, encode_ms: float, prefill_ms: float) -> dict[str, float]:
    return memory.summary([AnswerFigures(first_ms, encode_ms, prefill_ms, 10, 2, 20)])


def test_the_whole_model_is_extrapolated_by_its_parts() -> None:
    total = memory.extrapolate(figures(13, 2, 1), figures(18, 4, 3))
    assert total["encode_ms"] == 2 + 23 * 2
    assert total["prefill_ms"] == 1 + 27 * 2
    assert total["first_token_ms"] == 11 + total["encode_ms"] + total["prefill_ms"]
    assert "first_token_p95_ms" not in total


def test_targets_are_those_of_the_parts_that_were_measured() -> None:
    ratios = memory.against_snapshot({memory.SNAPSHOT: figures(100, 80, 10), memory.IDLE: figures(40, 30, 10)})
    assert ratios == {memory.IDLE: {"p50": 0.4, "p95": 0.4}}
    report: dict[str, Any] = {"typed": {"1 %": {"against_snapshot": ratios}}, "growth": {"ratio": 1.2}}
    targets = memory.judge(report)
    assert {name: target["met"] for name, target in targets.items()} == {
        "bundled, typed, 1 %, p50": False,
        "bundled, typed, 1 %, p95": True,
        "encoding in a group of 30": False,
    }


def test_parts_that_are_not_measured_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "memory.json"
    out.write_text(json.dumps({"benchmark": "memory", "refining": "kept"}), encoding="utf-8")
    monkeypatch.setattr(memory, "measure_part", lambda part, options, size: {"ratio": 1.0})
    monkeypatch.setattr("sys.argv", ["memory", "--only", "growth", "--size", "512x320", "--out", str(out)])
    memory.main()
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["refining"] == "kept"
    assert report["targets"]["encoding in a group of 30"]["met"]


def answer(ttft_ms: float) -> dict[str, Any]:
    timing = {"ttft_ms": ttft_ms, "total_ms": 90.0, "turn_ms": 1.0, "encode_ms": 2.0, "prefill_ms": 3.0}
    return {"timing": timing, "prefilled_tokens": 13}


def live_run(ttft_ms: float, misses: int) -> memory_live.LiveRun:
    summary = {
        "frames": 600,
        "dropped": {"capture.replaced": 1},
        "memory": {"idle": {"tokens": 7, "seconds": 0.5, "rebuilt": 1}},
    }
    return memory_live.LiveRun([answer(ttft_ms)], [ttft_ms], [answer(ttft_ms)], summary, 12.0, misses)


def test_live_ways_are_compared_with_none_without_memory() -> None:
    ways = {name: memory_live.figures([live_run(20.0, 3), live_run(20.0, 3)]) for name in memory_live.WAYS}
    ways["no memory"] = memory_live.figures([live_run(80.0, 0)])
    assert ways["defaults"]["dropped"] == {"capture.replaced": 2}
    assert ways["defaults"]["idle_tokens"] == 14
    ratios = memory_live.against(ways, "no memory")
    assert ratios["defaults"]["typed p50"] == ratios["defaults"]["due p95"] == 0.25
    targets = memory_live.judge({"quiet": {"ways": ways, "against_no_memory": ratios}})
    assert not targets["quiet, typed, p50, against no memory"]["met"]
    assert not targets["quiet, deadline misses, %"]["met"]
    calm = copy.deepcopy(ways)
    calm["defaults"]["deadline_misses"] = 0
    targets = memory_live.judge({"moving": {"ways": calm, "against_no_memory": ratios}})
    assert targets["moving, deadline misses, %"]["met"]
    assert not any("typed" in name for name in targets)


@pytest.mark.slow
def test_a_live_run_is_read_from_outside(tmp_path: Path) -> None:
    clip = tmp_path / "moving.mp4"
    MovingCamera("5 %", (320, 192)).write_clip(clip, 4.0, fps=10)
    run = memory_live.WatchCommand(clip, 4.0, ("--every", "0.5"), types=False).watch()
    assert run.summary["frames"] > 0
    assert run.due
    assert run.cpu_s_a_minute > 0
