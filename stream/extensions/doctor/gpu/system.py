"""Checks of what all others need: driver, torch with CUDA, OpenGL."""

from __future__ import annotations

import re

from arr_coc.errors import BackendMissing
from stream.extensions.doctor.diagnostic import TORCH_FOR_CUDA
from stream.extensions.doctor.gpu.checks import CheckAbsent, CheckFailed, CheckResult
from stream.extensions.doctor.nvidia import read_driver

OLDEST_CUDA = 12_000
"""CUDA 12.0, driver 525: it reads the shipped PTX."""

OLDEST_CAPABILITY = (7, 5)

NEEDED = "an NVIDIA GPU (Turing or newer), its driver 525 or newer, and torch for CUDA"
NEEDED_SHORT = "needs a GPU, driver 525+, CUDA torch"

LARGEST_SUM_ERROR = 1e-4
"""Relative error of a product of float32 matrices, without TF32."""


def driver() -> CheckResult:
    """Ask the driver for its devices."""
    try:
        driver_info = read_driver()
    except BackendMissing as error:
        raise CheckAbsent(f"{error.problem}; {NEEDED_SHORT}", NEEDED) from error
    if not driver_info.devices:
        raise CheckAbsent(f"no GPU at the driver; {NEEDED_SHORT}", NEEDED)
    best = max(device.capability for device in driver_info.devices)
    facts = {
        "cuda": driver_info.cuda_text,
        "devices": [
            {
                "name": device.name,
                "capability": ".".join(map(str, device.capability)),
                "memory_mb": device.memory_mb,
                "multiprocessors": device.multiprocessors,
            }
            for device in driver_info.devices
        ],
    }
    names = ", ".join(device.name for device in driver_info.devices)
    if driver_info.cuda < OLDEST_CUDA:
        raise CheckFailed(f"the driver speaks CUDA {driver_info.cuda_text}, and 12.0 is needed: {names}")
    if best < OLDEST_CAPABILITY:
        raise CheckFailed(f"{names}: compute capability {'.'.join(map(str, best))}, and 7.5 is needed", NEEDED)
    return CheckResult(f"CUDA {driver_info.cuda_text}, {names}, {driver_info.devices[0].memory_mb} MB", facts)


def torch_cuda() -> CheckResult:
    """Multiply matrices on the device as torch gives it, and compare with the CPU."""
    import torch

    from arr_coc.backends.cuda.device import find_device

    try:
        device = find_device()
    except BackendMissing as error:
        if torch.version.cuda is None:
            raise CheckAbsent(f"torch {torch.__version__} is for the CPU", TORCH_FOR_CUDA) from error
        raise
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 257, 257, generator=generator)
    product = (left.to(device.place) @ right.to(device.place)).cpu()
    relative_error = float((product - left @ right).norm() / product.norm())
    if not relative_error <= LARGEST_SUM_ERROR:
        raise CheckFailed(f"a product of matrices is off by {relative_error:.2g}, and {LARGEST_SUM_ERROR:g} is allowed")
    facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return CheckResult(
        f"torch {torch.__version__}, CUDA {torch.version.cuda}: right within {relative_error:.1g}", facts
    )


def opengl() -> CheckResult:
    """Open the best OpenGL device; a CPU that draws is named as such."""
    from arr_coc.backends.gl.device import open_device

    try:
        device = open_device()
    except BackendMissing as error:
        raise CheckAbsent(error.problem, error.remedy) from error
    with device.current():
        extensions = sorted(name for name in device.extensions() if "memory_object" in name or "semaphore" in name)
    version = ".".join(map(str, device.version))
    facts = {"renderer": device.renderer, "version": version, "display": device.name, "sharing": extensions}
    renderer = re.split(r" \(|/", device.renderer)[0]
    return CheckResult(f"OpenGL {version}, {renderer}, {device.name}", facts, software=device.software)
