"""`doctor --gpu` on a GPU that is emulated on the CPU: `python -m tests.cuda_on_cpu.doctor [OPTIONS]`.

The same module is the process of each check, which the variable `CUDA_ON_CPU` names the library for.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stream.extensions.doctor.gpu import child
from stream.extensions.doctor.gpu.runner import CheckSettings

if TYPE_CHECKING:
    import torch

LIBRARY = "CUDA_ON_CPU"

PATIENCE = 30.0
"""Factor of the limits of time: a CPU is slow, and may be busy."""


def main() -> int:
    """Run the command; or, as its child, one check."""
    CheckSettings.module, CheckSettings.patience = "tests.cuda_on_cpu.doctor", PATIENCE
    if LIBRARY in os.environ:
        if not sys.argv[1].endswith("system:driver"):
            emulate(Path(os.environ[LIBRARY]), sys.argv[1])
        else:
            import ctypes

            ctypes.CDLL(os.environ[LIBRARY], mode=ctypes.RTLD_GLOBAL)
        return child.main()
    from stream.cli import main as run_command
    from tests.cuda_on_cpu.machine import build

    with tempfile.TemporaryDirectory() as folder:
        os.environ[LIBRARY] = str(build(Path(folder)))
        return run_command(["doctor", "--gpu", *sys.argv[1:]])


def emulate(library: Path, function: str) -> None:
    """Make this process take the CPU for a CUDA device: for `sharing` also that of OpenGL, for `graphs` one that
    repeats steps."""
    from tests.cuda_on_cpu.machine import CpuMachine, install

    machine = CpuMachine(library)
    install(machine, setattr)
    if "interop" in function or "gl_cuda" in function:
        from tests.cuda_on_cpu.gl_sharing import share_textures

        share_textures(machine, setattr)
    if "model" in function:
        from arr_coc.qwen.batching import captured

        captured.cuda_graph = run_first


def run_first(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Capture that runs the step first, as a CUDA graph does."""
    step()
    return step


if __name__ == "__main__":
    sys.exit(main())
