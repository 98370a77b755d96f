"""`doctor --gpu`: checks of the GPU, printed and written to one file as they end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from stream.commands.outcome import FAILED, INTERRUPTED

if TYPE_CHECKING:
    from stream.config import Config
    from stream.extensions.doctor.gpu.runner import GpuRow

DEFAULT_FILE = "gpu-report.json"

STYLES = {"works": "green", "slow": "yellow", "absent": "yellow", "broken": "bold red"}


def check_gpu(config: Config, path: str, *, as_json: bool) -> int:
    """Run all checks and return the exit status. The file has the rows so far at every moment, also after Ctrl-C.

    Raises OutputError if the file cannot be written.
    """
    from stream.control import signals_held
    from stream.extensions.doctor.gpu.report import GpuReport, left_out_lines, summary_line
    from stream.extensions.doctor.gpu.runner import examine_gpu
    from stream.logs import print_line
    from stream.sinks.output_file import OutputFile

    report = GpuReport()
    with closing(OutputFile(path)) as file:

        def save(row: GpuRow | None = None, ended: str = "running") -> None:
            with signals_held():
                if row is not None:
                    report.add(row)
                report.ended = ended
                file.replace_tail(0, report.as_json())

        try:
            with _shown(as_json) as (begin, show):
                for row in examine_gpu(begin=begin):
                    save(row)
                    show(report.rows[-1])
            save(ended="finished")
        except KeyboardInterrupt:
            save(ended="interrupted")
        except BaseException:
            save(ended="failed")
            raise
    if as_json:
        print_line(report.as_json().rstrip("\n"))
    else:
        print_line("\n".join([*left_out_lines(report.rows), summary_line(report, path)]))
    if report.ended == "interrupted":
        return INTERRUPTED
    requires_cuda = config.answer.device.startswith("cuda") or config.texture.backend == "cuda"
    lacks_cuda = any(row.name in ("driver", "torch") and row.state == "absent" for row in report.rows)
    if report.counts["broken"] or (requires_cuda and lacks_cuda):
        return FAILED
    return 0


@contextmanager
def _shown(as_json: bool) -> Iterator[tuple[Callable[[str], None], Callable[[GpuRow], None]]]:
    """What announces a check, and what prints its row: on a terminal with the name of the one that runs below."""
    from stream.extensions.doctor.gpu.report import row_text
    from stream.logs import print_line

    def ignore(_: object) -> None:
        """Print nothing."""

    def print_row(row: GpuRow) -> None:
        if row.needed is None:
            print_line(row_text(row))

    if as_json:
        yield ignore, ignore
    elif not sys.stdout.isatty():
        yield ignore, print_row
    else:
        from rich.text import Text

        from stream.display.progress import PlainConsole

        console = PlainConsole()

        def print_styled(row: GpuRow) -> None:
            if row.needed is None:
                line = Text(row_text(row))
                line.stylize(STYLES[row.state], 0, len(row.state))
                console.print(line)

        with console.status("starting", spinner="line") as status:
            yield (lambda name: status.update(f"checking {name}")), print_styled
