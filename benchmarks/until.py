"""Delay, errors and savings of a standing query, against asking it of every frame.

    python -m benchmarks.until [--model FOLDER] [--seconds 20] [--out FILE]

Drawn scenes, as H.264, in which something comes and goes: before a still camera, with sensor noise, among things that
never rest, across cuts; and one in which it never comes. Each is read twice by the whole pipeline with one standing
question: as `--watch` reads it, and with a look at every frame whose likelier answer counts at once.

- *delay*: media time from the first frame that shows at least half of the thing (or the first that shows nothing of it)
  to the frame at which the answer turned, and what that look itself took. One that turned earlier has a delay of 0.
- *false alarm*: a turn to yes at a frame that shows nothing of it; an hour is one of media time.
- *looks saved*: 1 − looks ÷ frames. *compute saved*: 1 − time to encode and prefill of all looks of the watch ÷ that of
  looking at every frame. It is less, because a frame whose tokens are those of the one before costs the question only.
- *right looks*: share of single looks that are right, over all frames that show nothing or at least half of it. It is
  the model's doing, and every other figure depends on it.
"""

from __future__ import annotations

import argparse
import bisect
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import torch

from arr_coc.hub import bundled_model_path
from benchmarks.support.harness import write_report
from stream.config import AnswerConfig, Config, PipelineConfig, WatchConfig
from stream.events import VerdictChanged, YesNoResult
from stream.monitor.machine import machine
from stream.recording.identity import fingerprint
from stream.runtime.frame_stages import run_in_threads
from stream.scenes.catalogue import MOSS, SAND, SLATE
from stream.scenes.drawing import RGB, gradient
from stream.scenes.scene import Actor, Backdrop, Scene, Shot

RESULTS = Path(__file__).parent / "results" / "until.json"
FPS = 10
SHOWN, HIDDEN = 0.5, 0.0
"""Shares of a thing's box: from the one on it is there, at the other it is not; between them nothing is counted."""

DEFAULTS = WatchConfig(question="is it?")
EVERY_FRAME = WatchConfig(
    question="is it?", every_s=1e-6, least_s=0.0, threshold=0.5, no_below=0.5, sure=0.5, certain=0.0
)


@dataclass(frozen=True, slots=True)
class UntilCase:
    """A scene, and the thing that is watched for in it."""

    scene: Scene
    colour: str
    shape: str

    @property
    def question(self) -> str:
        return f"is there a {self.colour} {self.shape}?"

    def is_visible(self, frame_index: int) -> bool | None:
        """True if the thing is there; None if too little of it is seen to decide."""
        scene = self.scene
        number = bisect.bisect_right(scene.cuts, frame_index)
        at_s = (frame_index - (0, *scene.cuts)[number]) / scene.fps
        shares = [
            actor.thing(at_s, scene.width_px, scene.height_px).visible_share(scene.width_px, scene.height_px)
            for actor in scene.shots[number].actors
            if (actor.colour, actor.shape) == (self.colour, self.shape)
        ]
        most = max(shares, default=HIDDEN)
        return True if most >= SHOWN else False if most <= HIDDEN else None


def _backdrop(colours: tuple[RGB, RGB]) -> Backdrop:
    return lambda width_px, height_px: gradient(width_px, height_px, *colours)


def cases(seconds: float) -> list[UntilCase]:
    """Scenes of `seconds` seconds; in the middle half of most of them the thing is there."""
    comes = ((seconds * 0.25, -0.3, 0.35), (seconds * 0.25 + 0.5, 0.3, 0.35))
    goes = ((seconds * 0.75, 0.3, 0.35), (seconds * 0.75 + 0.5, -0.3, 0.35))
    still_actor = Actor("square", "blue", 0.2, ((0.0, 0.72, 0.65),))
    restless = Actor(
        "ring", "purple", 0.22, tuple((float(at), 0.6 + 0.25 * (at % 2), 0.7) for at in range(int(seconds)))
    )

    def case(
        name: str, colour: str, shape: Any, *others: Actor, noise: float = 0.0, is_present: bool = True
    ) -> UntilCase:
        actors = (Actor(shape, colour, 0.24, comes + goes), *others) if is_present else others
        shot = Shot(seconds, _backdrop(SLATE), actors)
        return UntilCase(Scene(name, 640, 384, FPS, (shot,), noise), colour, shape)

    stars = [Actor("star", "yellow", 0.26, ((0.0, 0.4, 0.6),)), Actor("circle", "green", 0.26, ((0.0, 0.4, 0.6),))]
    shots = [Shot(seconds / 5, _backdrop((SLATE, SAND, MOSS)[at % 3]), (stars[1 - at % 2],)) for at in range(5)]
    return [
        case("still", "red", "circle", still_actor),
        case("noise", "green", "star", still_actor, noise=4.0),
        case("restless", "yellow", "triangle", restless),
        case("never", "red", "circle", still_actor, restless, is_present=False),
        UntilCase(Scene("cuts", 640, 384, FPS, tuple(shots)), "yellow", "star"),
    ]


def judge(presence: Sequence[bool | None], turns: Sequence[tuple[int, bool]]) -> dict[str, Any]:
    """Outcome of each time at which the thing came or went. `turns`: (frame, whether to yes), in order.

    A change that no turn followed before the next change is missed, and then the next one is none to be noticed.
    """
    delays: list[int] = []
    misses, overlooked = 0, False
    clear = [(index, present) for index, present in enumerate(presence) if present is not None]
    changes = [
        (index, present)
        for (_, before), (index, present) in zip([(0, False), *clear], clear, strict=False)
        if present != before
    ]
    for number, (index, present) in enumerate(changes):
        until = changes[number + 1][0] if number + 1 < len(changes) else len(presence)
        holding = _holds_at(turns, index)
        at = next((frame for frame, yes in turns if index < frame < until and yes == present), -1)
        if overlooked and holding == present:
            overlooked = False
        elif holding == present or at >= 0:
            delays.append(0 if holding == present else at - index)
            overlooked = False
        else:
            misses, overlooked = misses + 1, True
    false = {yes: [frame for frame, to in turns if to == yes and presence[frame] is (not yes)] for yes in (True, False)}
    return {
        "changes": len(changes),
        "noticed_after_frames": delays,
        "missed": misses,
        "false_alarms": len(false[True]),
        "false_all_clears": len(false[False]),
    }


def _holds_at(turns: Sequence[tuple[int, bool]], frame_index: int) -> bool:
    """The answer that holds after the look at a frame."""
    return next((yes for frame, yes in reversed(turns) if frame <= frame_index), False)


def make_clip(path: Path, scene: Scene) -> None:
    """The scene as H.264."""
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=scene.fps, options={"preset": "veryfast", "crf": "18"})
        stream.width, stream.height, stream.pix_fmt = scene.width_px, scene.height_px, "yuv420p"
        for index in range(scene.frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(scene.render(index), format="rgb24")))
        container.mux(stream.encode())


def watch_clip(
    clip: Path, case: UntilCase, watch: WatchConfig, model: str | None
) -> tuple[list[YesNoResult], list[VerdictChanged]]:
    """The looks and turns of one run.

    Args:
        clip: File of the case's video.
        case: The scene and its question.
        watch: How the question is watched.
        model: Folder or name; the bundled model if None.
    """
    watch = watch.model_copy(update={"question": case.question, "force": True})
    config = Config(
        source=str(clip),
        answer=AnswerConfig(model=model),
        watch=(watch,),
        pipeline=PipelineConfig(single_process=True),
    )
    events = list(run_in_threads(config).run())
    looks = [event for event in events if isinstance(event, YesNoResult)]
    return looks, [event for event in events if isinstance(event, VerdictChanged)]


def look_ms(looks: Sequence[YesNoResult]) -> float:
    """Time to encode and prefill of all of them."""
    return sum(look.timing.encode_ms + look.timing.prefill_ms for look in looks if look.timing is not None)


def measure(case: UntilCase, folder: Path, model: str | None) -> dict[str, Any]:
    """Both runs of one case."""
    clip = folder / f"{case.scene.name}.mp4"
    make_clip(clip, case.scene)
    presence = [case.is_visible(index) for index in range(case.scene.frames)]
    looks, turns = watch_clip(clip, case, DEFAULTS, model)
    reference_looks, flaps = watch_clip(clip, case, EVERY_FRAME, model)
    right = [
        (look.yes >= 0.5) == presence[look.frame_index]
        for look in reference_looks
        if presence[look.frame_index] is not None
    ]
    return {
        "question": case.question,
        "frames": case.scene.frames,
        "looks": len(looks),
        "look_ms": round(look_ms(looks) / len(looks), 1),
        "looks_saved": round(1 - len(looks) / case.scene.frames, 3),
        "compute_saved": round(1 - look_ms(looks) / look_ms(reference_looks), 3),
        "right_looks": round(statistics.fmean(right), 3),
        "watch": judge(presence, [(turn.frame_index, turn.to == "yes") for turn in turns]),
        "every_frame": judge(presence, [(turn.frame_index, turn.to == "yes") for turn in flaps]),
    }


def sum_cases(measured: dict[str, dict[str, Any]], seconds: float) -> dict[str, Any]:
    """All cases together."""
    totals: dict[str, Any] = {}
    hours = seconds * len(measured) / 3600
    for way in ("watch", "every_frame"):
        runs = [case[way] for case in measured.values()]
        delays_ms = [1e3 * frames / FPS for run in runs for frames in run["noticed_after_frames"]]
        totals[way] = {
            "changes": sum(run["changes"] for run in runs),
            "missed": sum(run["missed"] for run in runs),
            "delay_ms": {"median": round(statistics.median(delays_ms)), "max": round(max(delays_ms))}
            if delays_ms
            else None,
            "false_alarms": sum(run["false_alarms"] for run in runs),
            "false_alarms_an_hour": round(sum(run["false_alarms"] for run in runs) / hours, 1),
            "false_all_clears": sum(run["false_all_clears"] for run in runs),
        }
    totals["media_seconds"] = seconds * len(measured)
    for name in ("look_ms", "looks_saved", "compute_saved", "right_looks"):
        totals[name] = round(statistics.fmean(case[name] for case in measured.values()), 3)
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub name; the bundled model when absent")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each scene")
    parser.add_argument("--out", type=Path, default=RESULTS, help="path of the JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measured = {case.scene.name: measure(case, Path(folder), options.model) for case in cases(options.seconds)}
    result = {
        "machine": machine() | {"threads": 1},
        "model": options.model or "bundled",
        "weights": None if options.model else fingerprint(bundled_model_path() / "model.safetensors"),
        "settings": DEFAULTS.model_dump(
            include={"every_s", "on_change", "on_cut", "least_s", "threshold", "most_of_no", "sure", "certain"}
        ),
        "frames_a_second": FPS,
        "all": sum_cases(measured, options.seconds),
        "cases": measured,
    }
    write_report(options.out, result)
    print(json.dumps(result["all"], indent=2))


if __name__ == "__main__":
    main()
