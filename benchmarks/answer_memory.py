"""What answering adds at most to a process that has loaded the bundled model.

python -m benchmarks.answer_memory WAY DEVICE DTYPE
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from arr_coc.qwen.loading import load_qwen
from benchmarks.answer_ways import speak_on, way_named
from stream.start import python_command, python_environment

ANSWERS = 2
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"
"""Written to `clear_refs`, it makes the peak what is resident now (proc(5))."""


def peak_mib(way: str, device: str, dtype: str) -> float | None:
    """In a process of its own; None where the system does not tell (other than Linux)."""
    command, environment = python_command("benchmarks.answer_memory", way, device, dtype), python_environment()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    said = done.stdout.split()[-1]
    return None if said == "None" else float(said)


def _resident_mib(name: str) -> float:
    lines = _STATUS.read_text("ascii", errors="replace").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def main() -> None:
    from benchmarks.answer import pictures

    name, device, dtype = sys.argv[1:]
    qwen = speak_on(load_qwen(None, device=device, dtype=dtype))
    way, frames = way_named(qwen, name), pictures(ANSWERS)
    on_cuda = qwen.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 2**20
    elif _CLEAR.exists():
        _CLEAR.write_text(_FORGET_PEAK)
        before = _resident_mib("VmRSS")
    else:
        print(None)
        return
    for index, picture in enumerate(frames):
        way.take(picture, index)
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_cuda else _resident_mib("VmHWM")
    print(round(peak - before, 1))


if __name__ == "__main__":
    main()
