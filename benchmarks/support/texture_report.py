"""Table, targets, plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

COLOURS = {"cpu": "tab:blue", "gl": "tab:orange", "cuda": "tab:green"}
PEER_COLOURS = ("0.2", "0.4", "0.55", "0.7", "tab:brown", "tab:pink")


def plot(report: dict[str, Any], path: Path) -> None:
    """A panel for each size, and one for the shares from which partial work loses."""
    from matplotlib.figure import Figure

    sizes = list(dict.fromkeys(row["size"] for row in report["cases"]))
    figure = Figure(figsize=(5 * (len(sizes) + 1), 6), layout="constrained")
    panels = figure.subplots(1, len(sizes) + 1, squeeze=False)[0]
    figure.suptitle("Upload and mipmaps of a frame, until they are done (median, ms)")
    for panel, size in zip(panels, sizes, strict=False):
        _draw_size(panel, report, size)
    if report["crossing"]:
        _draw_crossing(panels[-1], report["crossing"])
    else:
        panels[-1].remove()
    for panel in panels if report["crossing"] else panels[:-1]:
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
            store_rows = [row for row in rows if row["store"] == store]
            store_rows = [row for row in store_rows if row["share"] == 1 or row["scattered"] == scattered]
            shares, times = [100 * row["share"] for row in store_rows], [row["mips_ms"]["p50"] for row in store_rows]
            label = f"{store}, {'scattered' if scattered else 'one block'}"
            panel.plot(shares, times, style, color=COLOURS[store], label=label)
    peers = [peer for peer in report["peers"] if peer["size"] == size]
    for peer, colour in zip(peers, PEER_COLOURS, strict=False):
        panel.axhline(peer["whole_ms"]["p50"], color=colour, linestyle=":", label=f"{peer['peer']}, whole frame")


def _draw_crossing(panel: Any, crossings: list[dict[str, Any]]) -> None:
    panel.set_title("scattered tiles at 1080p: share from which one by one loses")
    for crossing in crossings:
        shares = [100 * row["share"] for row in crossing["shares"]]
        for way, style in (("one by one", "^:"), ("as the store does it", "s-"), ("whole frame", "-.")):
            times = [row[way] for row in crossing["shares"]]
            panel.plot(
                shares, times, style, color=COLOURS[crossing["store"]], alpha=0.8, label=f"{crossing['store']}, {way}"
            )
        if crossing["crosses_at_share"] is not None:
            panel.axvline(100 * crossing["crosses_at_share"], color=COLOURS[crossing["store"]], linewidth=0.8)


MIPS_TARGETS_MS = {"cpu": 0.3, "gl": 1.2}
"""Upload and mipmaps at 1080p, 10 % of the tiles in one block."""

GATHER_TARGET_MS = 0.17
"""273 regions."""

MOST_OF_WHOLE = 1.2
"""Largest cost of an update at any share, relative to that of everything."""

COLUMNS = ("update", "p95", "compare", "write", "up+mips", "p95", "gather", "swscale", "memcmp", "faster")


def summary(times_ms: list[float]) -> dict[str, float]:
    quantiles = {"min": min(times_ms), "p50": statistics.median(times_ms), "p95": float(np.percentile(times_ms, 95))}
    return {name: round(value, 4) for name, value in quantiles.items()}


def target_rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target with what was measured and whether it is met."""
    return [*_of_updates(report["cases"]), *_of_mips(report["cases"]), *_of_partial_work(report["cases"])]


def _of_updates(cases: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in cases:
        label = f"{row['store']}, {row['size']}, {row['case']}: update"
        if row["target_times_reading"] is not None:
            yield _target(f"{label}, times reading both frames", row["times_reading"], row["target_times_reading"])
        if row["target_times_faster"] is not None:
            yield _target(f"{label}, times faster", row["times_faster"], row["target_times_faster"], at_least=True)
    for row in cases:
        if (row["size"], row["store"], row["case"]) == ("1080p", "cpu", "10 %, one block"):
            full_ms = [
                other["update_ms"]["p50"]
                for other in cases
                if (other["size"], other["store"], other["case"]) == ("1080p", "cpu", "100 %")
            ]
            if full_ms:
                yield _target(
                    "cpu, 1080p: update at 10 % in one block, of 100 %", row["update_ms"]["p50"] / full_ms[0], 0.2
                )
            yield _target("cpu, 1080p: gather, ms", row["gather_ms"]["p50"], GATHER_TARGET_MS)


def _of_mips(cases: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in cases:
        if (row["size"], row["case"]) == ("1080p", "10 %, one block") and row["store"] in MIPS_TARGETS_MS:
            label = f"{row['store']}, 1080p, 10 %, one block: upload and mipmaps, ms"
            yield _target(label, row["mips_ms"]["p50"], MIPS_TARGETS_MS[row["store"]])


def _of_partial_work(cases: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """For each store and size, the dearest share against everything."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in cases:
        groups.setdefault((row["store"], row["size"]), []).append(row)
    for (store, size), rows in groups.items():
        full_ms = [row["mips_ms"]["p50"] for row in rows if row["share"] == 1]
        if full_ms:
            worst = max(row["mips_ms"]["p50"] / full_ms[0] for row in rows)
            yield _target(f"{store}, {size}: upload and mipmaps at any share, of everything", worst, MOST_OF_WHOLE)


def _target(label: str, measured: float, target: float, *, at_least: bool = False) -> dict[str, Any]:
    is_met = measured >= target if at_least else measured <= target
    return {"what": label, "measured": round(measured, 4), "target": target, "met": is_met}


def table(report: dict[str, Any]) -> str:
    lines: list[str] = []
    for size in dict.fromkeys(row["size"] for row in report["cases"]):
        lines += ["", f"{size + ', ms':24}{'store':6}" + "".join(f"{name:>9}" for name in COLUMNS)]
        lines += [_line(row) for row in report["cases"] if row["size"] == size]
        lines += [_peer_line(peer) for peer in report["peers"] if peer["size"] == size]
    lines += ["", "one by one costs more than the whole frame, if tiles are scattered:"]
    for entry in report["crossing"]:
        at = entry["crosses_at_share"]
        crossing = "never" if at is None else f"from {100 * at:.1f} % on"
        worst = max(row["as the store does it"] / row["whole frame"] for row in entry["shares"])
        lines.append(f"  {entry['store']:6}{crossing}; as the store does it, at most {worst:.2f} of the whole frame")
    lines += ["", "targets:"]
    for entry in report["targets"]:
        verdict = "met" if entry["met"] else "MISSED"
        lines.append(f"  {verdict:7} {entry['what']}: {entry['measured']:g} (target {entry['target']:g})")
    return "\n".join(lines[1:])


def _line(row: dict[str, Any]) -> str:
    update, mips = row["update_ms"], row["mips_ms"]
    figures = [update["p50"], update["p95"], row["compare_ms"]["p50"], row["write_ms"]["p50"]]
    figures += [mips["p50"], mips["p95"], row["gather_ms"]["p50"], row["whole_frame_ms"]["p50"]]
    figures += [row["read_both_ms"]["p50"]]
    cells = "".join(f"{figure:9.3f}" for figure in figures)
    return f"{row['case']:24}{row['store']:6}{cells}{row['times_faster']:8.1f}x"


def _peer_line(peer: dict[str, Any]) -> str:
    full_ms = peer["whole_ms"]
    return f"{peer['peer']:30}{' ' * 36}{full_ms['p50']:9.3f}{full_ms['p95']:9.3f}"
