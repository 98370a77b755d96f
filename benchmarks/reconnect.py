"""Time until there is text again after an RTSP camera that was away for ten seconds is back.

    python -m benchmarks.reconnect [--model FOLDER] [--cuts 5] [--away 10] [--out FILE]

A real RTSP server on loopback sends the drawn scene `demo` as H.264 (25 frames a second, a key frame a second) and is
cut: its sockets are closed, and nothing listens on its port. The whole pipeline runs as for `watch`, with the policies
of a live source. Counted from the moment at which the server listens again: to the first frame whose allocation is
ready, to the first piece of text, and to the first whole answer about a frame from after the cut. Target: text within
2 s.
"""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.support.harness import write_report
from benchmarks.support.rtsp_server import RtspServer, encode
from stream.config import AnswerConfig, CaptureConfig, Config
from stream.events import Answer, AnswerDeltaEvent, Event, FrameReady, Outage
from stream.monitor.machine import machine
from stream.runtime.run import Run
from stream.runtime.session import open_run
from stream.scenes import load_scene

RESULTS = Path(__file__).parent / "results" / "reconnect.json"
TARGET_S = 2.0
FPS = 25
UP_S = 4.0
"""Time that the server runs between two cuts."""


@dataclass
class ServerCut:
    """One cut, in monotonic seconds: when the server was cut, was back, and what came then."""

    cut_s: float
    back_s: float = 0.0
    outage: Outage | None = None
    frame_s: float | None = None
    text_s: float | None = None
    answer_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        def after(at_s: float | None) -> float | None:
            return None if at_s is None else round(at_s - self.back_s, 3)

        return {
            "away_s": round(self.back_s - self.cut_s, 3),
            "attempts": None if self.outage is None else self.outage.attempts,
            "outage_told_s": None if self.outage is None else self.outage.lasted_s,
            "first_frame_s": after(self.frame_s),
            "first_text_s": after(self.text_s),
            "first_answer_s": after(self.answer_s),
        }


@dataclass
class ReconnectWatch:
    """Notes what comes after each cut."""

    cuts: list[ServerCut] = field(default_factory=list)
    answers: int = 0
    _new_answers: set[int] = field(default_factory=set)

    def note(self, event: Event) -> None:
        now_s = time.monotonic()
        self.answers += isinstance(event, Answer)
        cut = self.cuts[-1] if self.cuts else None
        if cut is None or not cut.back_s:
            return
        if isinstance(event, Outage) and event.lasted_s is not None:
            cut.outage = event
        elif cut.outage is None:
            return
        elif isinstance(event, FrameReady):
            cut.frame_s = cut.frame_s or now_s
        elif isinstance(event, AnswerDeltaEvent):
            cut.text_s = cut.text_s or now_s
        elif isinstance(event, Answer) and event.frame_index > cut.outage.frame_index:
            cut.answer_s = cut.answer_s or now_s


def measure(model: str | None, cuts: int, away_s: float) -> list[dict[str, Any]]:
    """One run with `cuts` cuts."""
    scene = load_scene("demo")
    units = encode([scene.render(index) for index in range(min(scene.frames, 8 * FPS))], FPS, gop=FPS)
    with RtspServer(units, FPS) as server:
        config = Config(
            source=server.url, capture=CaptureConfig(fit="pad"), answer=AnswerConfig(model=model, every_s=1.0)
        )
        pipeline, watch = open_run(config), ReconnectWatch()
        director = threading.Thread(target=_direct, args=(server, pipeline, watch, cuts, away_s))
        for event in pipeline.run():
            watch.note(event)
            if isinstance(event, Answer) and watch.answers == 1:
                director.start()
        director.join()
    return [cut.as_json() for cut in watch.cuts]


def _direct(server: RtspServer, pipeline: Run, watch: ReconnectWatch, cuts: int, away_s: float) -> None:
    """Cut the server and restart it; not at the same phase of its key frames or of the waits each time."""
    for number in range(cuts):
        time.sleep(UP_S + 0.37 * number)
        cut = ServerCut(time.monotonic())
        watch.cuts.append(cut)
        server.cut()
        time.sleep(away_s + 0.23 * number)
        server.start()
        cut.back_s = time.monotonic()
    time.sleep(UP_S)
    pipeline.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub name; the bundled model when absent")
    parser.add_argument("--cuts", type=int, default=5)
    parser.add_argument("--away", type=float, default=10.0, help="seconds that the server is away")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    cuts = measure(options.model, options.cuts, options.away)
    texts = [cut["first_text_s"] for cut in cuts]
    for cut in cuts:
        print(cut)
    worst = None if None in texts else max(texts)
    print(f"server back to first text: {texts} s, worst {worst} (target {TARGET_S:g} s)")
    options.out.parent.mkdir(exist_ok=True)
    document = {"target_s": TARGET_S, "worst_first_text_s": worst, "cuts": cuts, "machine": machine()}
    write_report(options.out, document)


if __name__ == "__main__":
    main()
