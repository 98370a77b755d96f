"""Picture of a loss curve."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

NAMES = {
    "token": "what each token shows",
    "place": "place of what is asked about",
    "answer": "answers",
    "right_share": "answer tokens right",
}


def draw_curve(log: Path, picture: Path) -> None:
    """`log`: lines with `step` and some of `NAMES`. Nothing is drawn before the first line."""
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.is_file() else []
    if not lines:
        return
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, label in NAMES.items():
        points = [(line["step"], line[name]) for line in lines if name in line]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, linewidth=1)
    axes.set(xlabel="steps", ylabel="loss, share", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(picture, dpi=90)
