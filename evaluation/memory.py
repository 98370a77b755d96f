"""The most memory that an answer had: of the CUDA device where the model is on one, else of this process."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""What proc(5) says to write into clear_refs to make the peak begin at the present size."""


def reset_peak(device: torch.device) -> None:
    """Begin anew, where the system can: elsewhere the peak stays that of the process's whole life."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):
            _CLEAR.write_text(_RESET_PEAK)


def peak_bytes(device: torch.device) -> int:
    """The most since `reset_peak`: what torch has allocated on a CUDA device, or the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
