"""Process of one check: `python -m stream.extensions.doctor.gpu.child FUNCTION ARGUMENT DESCRIPTOR`.

It writes a `CheckReport` to the descriptor. It ends when its stdin does, because then its parent has gone.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import resource
import sys
import threading
import traceback

import msgspec

from arr_coc.errors import ArrCocError
from stream.errors import StreamError
from stream.extensions.doctor.gpu.checks import CheckAbsent, CheckReport, CheckResult, GpuState

TRACEBACK_CHARS = 20_000


def main() -> int:
    """Run the check that the arguments name, and report it."""
    function, argument, descriptor = sys.argv[1:4]
    faulthandler.enable()  # a crash prints the Python lines that it came from
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    report = perform(function, argument)
    with open(int(descriptor), "wb") as pipe:
        pipe.write(msgspec.json.encode(report, enc_hook=str))
    return 0


def perform(function: str, argument: str = "") -> CheckReport:
    """Return the report of a check, of whatever kind its exception is."""
    try:
        module, _, name = function.partition(":")
        check = getattr(importlib.import_module(module), name)
        result: CheckResult = check(argument) if argument else check()
    except CheckAbsent as absent:
        return CheckReport("absent", absent.problem, absent.remedy)
    except (ArrCocError, StreamError) as error:
        return CheckReport("broken", _line(error.problem), error.remedy, traceback=_trace())
    except Exception as error:
        return CheckReport("broken", _line(f"{type(error).__name__}: {error}"), traceback=_trace())
    state: GpuState = "slow" if any(figure.is_missed for figure in result.figures) else "works"
    figures = [figure.as_json() for figure in result.figures]
    return CheckReport(state, result.finding, None, result.software, dict(result.facts), figures)


def _line(text: str) -> str:
    return " ".join(text.split())


def _trace() -> str:
    return traceback.format_exc()[-TRACEBACK_CHARS:]


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
