"""First tokens about a camera at rest, with the visual memory as it ships, beside snapshots.

    python -m benchmarks.memory [--only PART …] [--answers N] [--answers-2b N] [--size 1920x1080] [--device cuda]
        [--out FILE]

A camera gives four frames a second and is asked every two seconds (`support/moving_camera.py`): a still picture, one
with a sensor's noise, one in which something moves all the time, so that 1 or 5 % of the tiles differ from those of the
answer before, and a pan. Four ways take turns with every picture, all with the options of `ARRCOCQwen.stream`
(`support/memory_ways.py`): a *snapshot* of chosen tokens, as `--no-memory`; the *memory* that never reads ahead;
*memory, idle*, which reads ahead between two answers for the share of the time that ships, by its own time; and
*memory, patch*, which does so too and has `answer.memory.patch`. The first answer is not counted. `first_token_ms`
counts from the question; ratios are of medians.

Parts, which `--only` chooses and the others stay as they were in the file:

- `scenes`: the bundled model, in every scene.
- `typed`: another question at a random moment between two answers, with what is being read then.
- `refining`: tokens in full resolution after the idle time of 10 s, of those that fit.
- `growth`: encoding time of the last answers of a group of 30 without idle time, against the first ones.
- `logits`: of the question behind the memory as it stands, against one fresh prefill of the tokens that it shows.
- `2b`, `2b-int8`: Qwen3-VL-2B's dimensions with random weights, on a CPU extrapolated from one and two blocks of each
  kind. There, idle time is so much shorter that as much is read as by the whole model.

Targets are in TARGETS.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.allocation.group import OVERVIEW_TOKENS, GroupOptions
from arr_coc.qwen.generation import MAX_TOKENS
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.small_weights.layers import shrink_weights
from arr_coc.qwen.untrained import LANGUAGE_LAYERS, VISION_BLOCKS, qwen3_vl_2b
from arr_coc.texture.store.base import gather_pixels
from arr_coc.types import FrameStamp, GroupPlace, TokenPacket
from arr_coc.video.texture_updater import TextureUpdater
from benchmarks.support.answer_ways import speak_on
from benchmarks.support.harness import percentiles, write_report
from benchmarks.support.memory_ways import (
    OTHER_QUERY,
    QUERY,
    AnswerFigures,
    CameraWay,
    Memory,
    Snapshots,
    make_session,
    planes_of,
)
from benchmarks.support.moving_camera import SIZE_PX, MovingCamera, SceneName, changed_share
from stream.answer.qwen import auto_idle_share
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results" / "memory.json"
PARTS = ("scenes", "typed", "refining", "growth", "logits", "2b", "2b-int8")
SCENES: tuple[SceneName, ...] = ("still", "still street", "noise", "1 %", "5 %", "everything")
TYPED_SCENES: tuple[SceneName, ...] = ("still street", "1 %")
SCENES_2B: tuple[SceneName, ...] = ("still", "noise", "1 %", "5 %", "everything")

EVERY_S, FRAME_S = 2.0, 0.25
FRAMES = round(EVERY_S / FRAME_S)
"""Between two answers."""

SNAPSHOT, MEMORY, IDLE, PATCH = "snapshot", "memory", "memory, idle", "memory, patch"
TOKENS_2B = 2
"""Text of an answer there: its decoding is not measured."""

TARGETS: dict[SceneName, float] = {"still": 1.05, "noise": 0.3, "1 %": 0.3, "5 %": 0.5, "everything": 1.05}
"""First token with defaults by that of a snapshot."""

TYPED_TARGETS = {"p50": 0.2, "p95": 0.4}
GROWTH_TARGET = 1.1
GROUP_ANSWERS, COMPARED = 30, 5
REFINED_AFTER_S = 10.0
LOGIT_QUERIES = (QUERY, OTHER_QUERY, "Is anything moving?", "What does the text say?")
LOGIT_SCENES: tuple[SceneName, ...] = ("1 %", "5 %")
LOGIT_ANSWERS = 6

Size = tuple[int, int]
Runs = dict[str, list[AnswerFigures]]


def make_ways(qwen: QwenVL, max_tokens: int = MAX_TOKENS, speed: float = 1.0) -> dict[str, CameraWay]:
    share = auto_idle_share(qwen.device.type)
    return {
        SNAPSHOT: Snapshots(qwen, max_tokens),
        MEMORY: Memory(qwen, 0.0, max_tokens),
        IDLE: Memory(qwen, share, max_tokens, speed),
        PATCH: Memory(qwen, share, max_tokens, speed, patch=True),
    }


def frames(camera: MovingCamera, answers: int) -> Iterator[tuple[int, float, Rgb]]:
    """Yield number, media time and picture of each frame, up to that of the last answer; the first answer is not
    counted."""
    for number in range(answers * FRAMES + 1):
        yield number, number * FRAME_S, camera.picture(number * FRAME_S)


def by_turns(ways: Mapping[str, CameraWay], number: int) -> list[tuple[str, CameraWay]]:
    """Return the ways in an order that changes from answer to answer."""
    turn = number // FRAMES % len(ways)
    return [*ways.items()][turn:] + [*ways.items()][:turn]


def measure_scene(ways: Mapping[str, CameraWay], camera: MovingCamera, answers: int) -> Runs:
    """Answers of each way about the same pictures."""
    runs: Runs = {name: [] for name in ways}
    for number, at_s, picture in frames(camera, answers):
        for name, way in by_turns(ways, number):
            way.update(picture, at_s)
            if number % FRAMES == 0:
                runs[name].append(way.answer())
            way.rest(FRAME_S)
    return {name: figures[1:] for name, figures in runs.items()}


def measure_typed(ways: Mapping[str, CameraWay], camera: MovingCamera, answers: int) -> Runs:
    """Answers of each way to another question, between the standing one's; all are asked after the same frame and in
    the middle of its time for reading ahead."""
    runs: Runs = {name: [] for name in ways}
    moments = random.Random(1)
    typed_frame = 0
    for number, at_s, picture in frames(camera, answers):
        if number % FRAMES == 0:
            typed_frame, share = number + moments.randrange(1, FRAMES), moments.random()
        for name, way in by_turns(ways, number):
            way.update(picture, at_s)
            if number % FRAMES == 0:
                way.answer()
            if number == typed_frame:
                way.rest(share * FRAME_S)
                runs[name].append(way.answer(OTHER_QUERY))
                way.rest((1 - share) * FRAME_S)
            else:
                way.rest(FRAME_S)
    return {name: figures[1:] for name, figures in runs.items()}


def summary(figures: Sequence[AnswerFigures]) -> dict[str, float]:
    """Medians, and the 95th percentile of the first token."""
    row = {
        field.name: round(statistics.median(getattr(figure, field.name) for figure in figures), 2)
        for field in fields(AnswerFigures)
    }
    return row | {"first_token_p95_ms": percentiles([figure.first_token_ms for figure in figures], 2)["p95"]}


def against_snapshot(rows: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Ratios of the first token of each way to that of a snapshot: of medians, and of p95 if all have it."""
    names = {"first_token_ms": "p50", "first_token_p95_ms": "p95"}
    return {
        name: {
            short: round(row[figure] / rows[SNAPSHOT][figure], 3) for figure, short in names.items() if figure in row
        }
        for name, row in rows.items()
        if name != SNAPSHOT
    }


def case_report(camera: MovingCamera, rows: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    changed = changed_share(camera.picture(EVERY_S), camera.picture(2 * EVERY_S))
    return {"changed_percent": round(100 * changed, 2), "ways": rows, "against_snapshot": against_snapshot(rows)}


def measure_scenes(
    qwen: QwenVL,
    scenes: Sequence[SceneName],
    answers: int,
    size: Size,
    measure: Callable[[Mapping[str, CameraWay], MovingCamera, int], Runs] = measure_scene,
) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for scene in scenes:
        camera = MovingCamera(scene, size)
        runs = measure(make_ways(qwen), camera, answers)
        report[scene] = case_report(camera, {name: summary(figures) for name, figures in runs.items()})
    return report


def measure_refining(qwen: QwenVL, size: Size) -> dict[str, Any]:
    """Idle work about a still picture after its first answer."""
    camera = MovingCamera("still street", size)
    memory, limit = Memory(qwen, auto_idle_share(qwen.device.type)), GroupOptions().tokens
    memory.update(camera.picture(0.0), 0.0)
    memory.answer()
    fine_tokens = [_fine_tokens(memory)]
    for number in range(round(REFINED_AFTER_S / FRAME_S)):
        memory.update(camera.picture(0.0), (number + 1) * FRAME_S)
        memory.rest(FRAME_S)
        fine_tokens.append(_fine_tokens(memory))
    figures = memory.answer()
    tiles = camera.grid.rows * camera.grid.cols
    most_tokens = min(tiles, limit - OVERVIEW_TOKENS)
    return {
        "tiles": tiles,
        "fitting_tokens": most_tokens,
        "full_resolution_tokens": fine_tokens[-1],
        "share": round(min(1.0, fine_tokens[-1] / most_tokens), 3),
        "idle_ms": round(figures.idle_ms, 1),
        "after_each_s": fine_tokens[:: round(1 / FRAME_S)],
    }


def _fine_tokens(memory: Memory) -> int:
    group = memory.session.prompts.memory
    assert group is not None
    return int(torch.count_nonzero(group.regions[:, 0] == 0))


def measure_growth(qwen: QwenVL, size: Size, answers: int = GROUP_ANSWERS) -> dict[str, Any]:
    """Answers of one group that is never written anew, at 1 %."""
    runs = measure_scene({MEMORY: Memory(qwen, 0.0)}, MovingCamera("1 %", size), answers)[MEMORY]
    begin, end = (
        statistics.median(figures.encode_ms for figures in part) for part in (runs[:COMPARED], runs[-COMPARED:])
    )
    return {
        "answers": answers,
        "encode_ms_first": round(begin, 2),
        "encode_ms_last": round(end, 2),
        "ratio": round(end / begin, 3),
        "encode_ms": [round(figures.encode_ms, 1) for figures in runs],
        "appended_tokens": [figures.appended_tokens for figures in runs],
        "held_tokens": [figures.held_tokens for figures in runs],
    }


@contextmanager
def first_logits(qwen: QwenVL) -> Iterator[list[torch.Tensor]]:
    """Keep what the output head makes of each prompt's end, and of each token after it."""
    rows: list[torch.Tensor] = []
    hook = qwen.model.lm_head.register_forward_hook(lambda module, inputs, output: rows.append(output.detach()))
    try:
        yield rows
    finally:
        hook.remove()


def fresh_packet(qwen: QwenVL, picture: Rgb, regions: torch.Tensor) -> TokenPacket:
    """Return a key frame of these regions int64 [K, 3] of a picture."""
    texture = TextureUpdater()
    texture.process(planes_of(qwen, picture), FrameStamp(0, 0, 0))
    codes = regions.cpu().numpy().astype(np.int32)
    with texture.lease() as view:
        pixels = gather_pixels(view, codes)
        relevance = np.ones(len(codes), np.float32)
        packet = TokenPacket(view.stamp, view.grid, codes, relevance, pixels, place=GroupPlace(1, 0))
    texture.close()
    return packet


def measure_logits(qwen: QwenVL, size: Size, answers: int = LOGIT_ANSWERS) -> dict[str, Any]:
    """Questions behind the memory, and behind a fresh prefill of the tokens that it shows then."""
    report: dict[str, Any] = {}
    for scene in LOGIT_SCENES:
        camera = MovingCamera(scene, size)
        share = auto_idle_share(qwen.device.type)
        memories = {MEMORY: Memory(qwen, 0.0), IDLE: Memory(qwen, share)}
        pairs: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in memories}
        fresh, _ = make_session(qwen, 1)
        for number, at_s, picture in frames(camera, answers):
            for name, memory in memories.items():
                memory.update(picture, at_s)
                if number % FRAMES == 0:
                    memory.answer()
                if number and number % FRAMES == 0:
                    query = LOGIT_QUERIES[number // FRAMES % len(LOGIT_QUERIES)]
                    with first_logits(qwen) as rows:
                        memory.answer(query)
                    group = memory.session.prompts.memory
                    assert group is not None
                    fresh.forget()
                    with first_logits(qwen) as fresh_rows:
                        for _ in fresh.answer([fresh_packet(qwen, picture, group.regions)], query):
                            pass
                    pairs[name].append((rows[0].flatten().float(), fresh_rows[0].flatten().float()))
                memory.rest(FRAME_S)
        report[scene] = {name: _distance(logits) for name, logits in pairs.items()}
    return report


def _distance(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    differences = [float((left - right).abs().max()) for left, right in pairs]
    equal = [bool(left.argmax() == right.argmax()) for left, right in pairs]
    spread = statistics.median(float(right.std()) for _, right in pairs)
    return {
        "questions": len(pairs),
        "max_difference": round(max(differences), 4),
        "median_difference": round(statistics.median(differences), 4),
        "std_of_logits": round(spread, 4),
        "equal_argmax": round(statistics.mean(equal), 3),
    }


def untrained(device: str, blocks: int | None, *, int8: bool) -> QwenVL:
    """Return the 2B's dimensions with so many blocks of each kind; None: whole."""
    sizes = () if blocks is None else (blocks, blocks)
    qwen = speak_on(qwen3_vl_2b(device, torch.float32 if int8 else torch.bfloat16, *sizes))
    if int8:
        shrink_weights(qwen.model, "int8", lambda name, weight: None)
    return qwen


def extrapolate(single: Mapping[str, float], double: Mapping[str, float]) -> dict[str, float]:
    """Return a way of the whole model, from medians with one block of each kind and with two; tokens are those with
    two."""
    total = {name: value for name, value in double.items() if name != "first_token_p95_ms"}
    for name, count in (("encode_ms", VISION_BLOCKS), ("prefill_ms", LANGUAGE_LAYERS)):
        total[name] = round(single[name] + (count - 1) * max(0.0, double[name] - single[name]), 2)
    other_ms = double["first_token_ms"] - double["encode_ms"] - double["prefill_ms"]
    total["first_token_ms"] = round(max(0.0, other_ms) + total["encode_ms"] + total["prefill_ms"], 2)
    return total


def prompt_ms(qwen: QwenVL, camera: MovingCamera, rounds: int = 3) -> dict[str, float]:
    """Medians of a snapshot that reuses nothing."""
    way = Snapshots(qwen, 1)
    figures = []
    for number in range(rounds + 1):
        way.update(camera.picture(0.0), number * EVERY_S)
        way.session.forget()
        figures.append(way.answer())
    return summary(figures[1:])


def measure_2b(device: str, answers: int, size: Size, *, int8: bool) -> dict[str, Any]:
    """Whole on CUDA; on the CPU times from one and two blocks."""
    sizes = [None] if device.startswith("cuda") else [1, 2]
    models = [untrained(device, blocks, int8=int8) for blocks in sizes]
    prompts = [prompt_ms(qwen, MovingCamera("still", size)) for qwen in models]
    whole_ms = (extrapolate(*prompts) if len(prompts) > 1 else prompts[0])["first_token_ms"]
    speeds = [prompt["first_token_ms"] / whole_ms for prompt in prompts]
    cases: dict[str, Any] = {}
    typed_scene: SceneName = "1 %"
    for name, scene, measure in [
        *((scene, scene, measure_scene) for scene in SCENES_2B),
        (f"typed, {typed_scene}", typed_scene, measure_typed),
    ]:
        camera = MovingCamera(scene, size)
        ways = {
            (way, index): camera_way
            for index, (qwen, speed) in enumerate(zip(models, speeds, strict=True))
            for way, camera_way in make_ways(qwen, TOKENS_2B, speed).items()
        }
        # Models of all sizes take turns, as what else the machine does is extrapolated too.
        runs = measure({f"{way} {index}": camera_way for (way, index), camera_way in ways.items()}, camera, answers)
        rows = {key: summary(runs[f"{key[0]} {key[1]}"]) for key in ways}
        names = dict.fromkeys(way for way, _ in ways)
        medians = {way: extrapolate(rows[way, 0], rows[way, 1]) if len(sizes) > 1 else rows[way, 0] for way in names}
        cases[name] = case_report(camera, medians)
    return {
        "model": models[0].model_id,
        "dtype": "int8" if int8 else "bfloat16",
        "whole": len(sizes) == 1,
        "answers": answers,
        "prompt_of_all_ms": whole_ms,
        "scenes": cases,
    }


def judge(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets of the parts that were measured: value, target, whether it is met."""
    targets: dict[str, dict[str, Any]] = {}

    def check(name: str, value: float, target: float) -> None:
        targets[name] = {"value": value, "target": target, "met": value <= target}

    models = {"bundled": report.get("scenes")}
    models |= {name: report[name]["scenes"] for name in ("2b", "2b-int8") if name in report}
    for model, scenes in models.items():
        for scene, target in TARGETS.items():
            if scenes:
                check(f"{model}, {scene}", scenes[scene]["against_snapshot"][IDLE]["p50"], target)
        if scenes and "typed, 1 %" in scenes:
            ratio = scenes["typed, 1 %"]["against_snapshot"][IDLE]["p50"]
            check(f"{model}, typed, 1 %, p50", ratio, TYPED_TARGETS["p50"])
    for scene, case in report.get("typed", {}).items():
        for figure, target in TYPED_TARGETS.items():
            check(f"bundled, typed, {scene}, {figure}", case["against_snapshot"][IDLE][figure], target)
    if "growth" in report:
        check(f"encoding in a group of {GROUP_ANSWERS}", report["growth"]["ratio"], GROWTH_TARGET)
    return targets


def table(title: str, cases: Mapping[str, Any]) -> str:
    """As it is printed: one line for each scene and way."""
    lines = [f"\n{title}", f"{'':28}" + "".join(f"{head:>10}" for head in (*COLUMNS.values(), "ratio"))]
    for scene, case in cases.items():
        for name, row in case["ways"].items():
            cells = "".join(f"{row[key]:10.0f}" if key in row else f"{'':10}" for key in COLUMNS)
            ratio = case["against_snapshot"].get(name, {"p50": 1.0})["p50"]
            lines.append(f"{scene:14}{name:14}{cells}{ratio:10.2f}")
    return "\n".join(lines)


COLUMNS = {
    "first_token_ms": "first",
    "first_token_p95_ms": "p95",
    "encode_ms": "encode",
    "prefill_ms": "prefill",
    "prefilled_tokens": "tokens",
    "held_tokens": "held",
    "idle_ms": "idle",
}


def measure_part(part: str, options: argparse.Namespace, size: Size) -> Any:
    """Return the report of one part."""
    if part.startswith("2b"):
        return measure_2b(options.device, options.answers_2b, size, int8=part == "2b-int8")
    qwen = load_qwen(None, device=options.device)
    parts: dict[str, Callable[[], Any]] = {
        "scenes": partial(measure_scenes, qwen, SCENES, options.answers, size),
        "typed": partial(measure_scenes, qwen, TYPED_SCENES, options.answers, size, measure_typed),
        "refining": partial(measure_refining, qwen, size),
        "growth": partial(measure_growth, qwen, size),
        "logits": partial(measure_logits, qwen, size),
    }
    return parts[part]()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS, metavar="PART")
    parser.add_argument("--answers", type=int, default=10, help="counted answers of each way")
    parser.add_argument("--answers-2b", type=int, default=3, help="the same, at the dimensions of Qwen3-VL-2B")
    parser.add_argument("--size", default="x".join(map(str, SIZE_PX)), help="of the pictures")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    width_px, height_px = map(int, arguments.size.split("x"))
    report: dict[str, Any] = {"benchmark": "memory"}
    if set(arguments.only) < set(PARTS) and arguments.out.is_file():
        previous = json.loads(arguments.out.read_text(encoding="utf-8"))
        report |= {name: previous[name] for name in (*PARTS, "took_s") if name in previous}
    report["size"] = arguments.size
    report["machine"] = machine() | {"device": arguments.device, "threads": torch.get_num_threads()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for part in arguments.only:
        began_s = time.perf_counter()
        report[part] = measured = measure_part(part, arguments, (width_px, height_px))
        report.setdefault("took_s", {})[part] = round(time.perf_counter() - began_s, 1)
        report["targets"] = judge(report)
        write_report(arguments.out, report)
        cases = measured.get("scenes", measured) if part in ("scenes", "typed", "2b", "2b-int8") else None
        print(table(part, cases) if cases else f"\n{part}: {json.dumps(measured)}", flush=True)
    print()
    for name, target in report["targets"].items():
        print(f"{name:34}{target['value']:8.3f} <= {target['target']:g}{'' if target['met'] else '  missed'}")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
