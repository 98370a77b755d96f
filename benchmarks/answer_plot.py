"""Where an answer's time goes, way by way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PARTS = {"prepare_ms": "0.6", "encode_ms": "tab:blue", "prefill_ms": "tab:orange", "decode_ms": "tab:green"}


def plot(report: dict[str, Any], path: Path) -> None:
    """A panel for each model; the ways beneath each other, the stock model on top."""
    from matplotlib.figure import Figure

    models = [report[name] for name in ("bundled", "qwen3_vl_2b") if name in report]
    figure = Figure(figsize=(6.5 * len(models), 4.2), layout="constrained")
    for panel, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        _draw(panel, model)
    figure.savefig(path, dpi=120, format="png")


def _draw(panel: Any, model: dict[str, Any]) -> None:
    names = [f"{row['way'].split()[0]}, {row['visual_tokens']} tokens" for row in model["ways"]]
    left = [0.0] * len(names)
    for part, colour in PARTS.items():
        widths = [row[part] for row in model["ways"]]
        panel.barh(names, widths, left=left, color=colour, label=part.removesuffix("_ms"))
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, row in enumerate(model["ways"]):
        panel.text(left[place], place, f" {row['answers_hz']:.2g}/s", va="center", fontsize=8)
    panel.invert_yaxis()
    panel.margins(x=0.12)
    panel.set_xlabel("milliseconds from picture to twelve tokens")
    whole = "" if model.get("whole", True) else ", extrapolated from one and two blocks"
    panel.set_title(f"{model['model']}\n{model['dtype']}{whole}", fontsize=10)
    panel.legend(fontsize=8, loc="lower right")
