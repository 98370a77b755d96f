"""A picture of a benchmark: how late each frame was, and how lateness is distributed."""

from __future__ import annotations

from stream.bench import Report
from stream.errors import ConfigError, OutputError


def plot_report(report: Report, title: str, path: str) -> None:
    """Writes a PNG. Raises ConfigError where matplotlib is missing, OutputError where `path` cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "--png needs matplotlib, which is not installed: pip install 'arr-coc-stream[plot]'"
        ) from error
    figure = Figure(figsize=(10, 4), layout="constrained")
    over_time, spread = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.suptitle(title)
    over_time.plot(report.ready_s, report.frame_latency_ms, ".", markersize=3, color="tab:blue")
    over_time.set(xlabel="time of the run, s", ylabel="frame latency, ms", title="each frame")
    over_time.set_ylim(bottom=0)
    spread.hist(report.frame_latency_ms, bins=60, color="tab:blue")
    spread.set(xlabel="frame latency, ms", ylabel="frames", title="distribution")
    frame = report.latencies[0].values
    if frame is not None:
        for name, colour in (("p50", "tab:green"), ("p95", "tab:orange"), ("p99", "tab:red")):
            value = getattr(frame, name)
            spread.axvline(value, color=colour, label=f"{name} {value:.2f} ms")
        spread.legend(framealpha=1)
    try:
        figure.savefig(path, dpi=150, format="png")
    except OSError as error:
        raise OutputError(f"cannot write {path!r}: {error.strerror}") from error
