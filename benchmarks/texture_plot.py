"""Upload and mipmaps by the share of tiles that changed, with both axes logarithmic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {"cpu": "tab:blue", "gl": "tab:orange", "cuda": "tab:green"}
PEER_COLOURS = ("0.2", "0.4", "0.55", "0.7", "tab:brown", "tab:pink")


def plot(report: dict[str, Any], path: Path) -> None:
    """A panel for each size, and one for where partial work loses."""
    from matplotlib.figure import Figure

    sizes = list(dict.fromkeys(row["size"] for row in report["cases"]))
    figure = Figure(figsize=(5 * (len(sizes) + 1), 6), layout="constrained")
    panels = figure.subplots(1, len(sizes) + 1, squeeze=False)[0]
    figure.suptitle("Upload and mipmaps of a frame, until they are done (median, ms)")
    for panel, size in zip(panels, sizes, strict=False):
        _draw_size(panel, report, size)
    _draw_crossing(panels[-1], report["crossing"])
    for panel in panels:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set_xlabel("tiles that changed, %")
        panel.grid(alpha=0.3, which="both")
        panel.legend(fontsize=7)
    figure.savefig(path, dpi=120, format="png")


def _draw_size(panel: Any, report: dict[str, Any], size: str) -> None:
    panel.set_title(size)
    rows = [row for row in report["cases"] if row["size"] == size and not row["noise"] and row["share"]]
    for store in dict.fromkeys(row["store"] for row in rows):
        for scattered, style in ((False, "o-"), (True, "s--")):
            chosen = [row for row in rows if row["store"] == store]
            chosen = [row for row in chosen if row["share"] == 1 or row["scattered"] == scattered]
            shares, times = [100 * row["share"] for row in chosen], [row["mips_ms"]["p50"] for row in chosen]
            label = f"{store}, {'scattered' if scattered else 'one block'}"
            panel.plot(shares, times, style, color=COLOURS[store], label=label)
    peers = [peer for peer in report["peers"] if peer["size"] == size]
    for peer, colour in zip(peers, PEER_COLOURS, strict=False):
        panel.axhline(peer["whole_ms"]["p50"], color=colour, linestyle=":", label=f"{peer['peer']}, whole frame")


def _draw_crossing(panel: Any, found: list[dict[str, Any]]) -> None:
    panel.set_title("scattered tiles at 1080p: where one by one loses")
    for one in found:
        shares = [100 * row["share"] for row in one["shares"]]
        for way, style in (("one by one", "^:"), ("as the store does it", "s-"), ("whole frame", "-.")):
            times = [row[way] for row in one["shares"]]
            panel.plot(shares, times, style, color=COLOURS[one["store"]], alpha=0.8, label=f"{one['store']}, {way}")
        if one["crosses_at_share"] is not None:
            panel.axvline(100 * one["crosses_at_share"], color=COLOURS[one["store"]], linewidth=0.8)
