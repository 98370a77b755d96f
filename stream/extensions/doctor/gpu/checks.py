"""Declaration of a check of the GPU, its result, and the list of all checks in the order of risk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from stream.errors import StreamError

GpuState = Literal["works", "slow", "absent", "broken"]
"""`slow`: it works, and missed a target."""


class CheckFailed(StreamError):
    """A result that is not the reference's."""


class CheckAbsent(StreamError):
    """A part that this machine does not have, so that there is nothing to check."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value, and the target that it must not exceed; at least, if `is_rate`."""

    name: str
    value: float
    unit: str = "ms"
    target: float | None = None
    is_rate: bool = False

    @property
    def is_missed(self) -> bool:
        """True if there is a target and the value misses it."""
        if self.target is None:
            return False
        if self.is_rate:
            return self.value < self.target
        return self.value > self.target

    def as_json(self) -> dict[str, Any]:
        """Return the figure as the report has it."""
        if self.target is None:
            verdict = {}
        else:
            verdict = {"target": self.target, "reached": not self.is_missed}
        return {"name": self.name, "value": round(self.value, 4), "unit": self.unit, **verdict}

    def __str__(self) -> str:
        least = "≥" if self.is_rate else "≤"
        if self.target is None:
            target = ""
        else:
            target = f" ({least} {self.target:g})"
        return f"{self.name} {self.value:.3g} {self.unit}{target}"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a check that works. `software`: a CPU did the work of the GPU."""

    finding: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    software: bool = False

    @classmethod
    def of_figures(cls, *figures: Figure, **fields: Any) -> CheckResult:
        """Return the result of a measurement: figures that missed their targets first, then others with a target."""
        ordered = sorted(figures, key=lambda figure: (not figure.is_missed, figure.target is None))
        return cls("; ".join(map(str, ordered)), figures=figures, **fields)


class CheckReport(msgspec.Struct, frozen=True):
    """Report of a check's process: its result, or the exception that ended it."""

    state: GpuState
    finding: str
    remedy: str | None = None
    software: bool = False
    facts: dict[str, Any] = {}
    figures: list[dict[str, Any]] = []
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class GpuCheck:
    """A check that runs in its own process.

    `function` is `module:function`; it takes `argument` if there is one, and returns a `CheckResult`. `needs` are names
    of earlier checks that must work. `remedy` is what to do if it fails.
    """

    name: str
    function: str
    remedy: str
    argument: str = ""
    needs: tuple[str, ...] = ()
    limit_s: float = 60.0
    memory_mb: int = 6000


_FILES = ("upload", "fetch", "gather", "sample", "difference", "channels")
"""Names of `kernels/*.cu`, in the order in which a frame meets them."""

_KERNEL_REMEDY = "run with --backend cpu, and attach the report to an issue"
_STORE_REMEDY = "run with --backend cpu, and attach the report to an issue"
_MODEL_REMEDY = "run with --dtype float32 or --device cpu, and attach the report to an issue"
_SHARE_REMEDY = "set texture.interop = off; runs then copy through host memory"
_SLOW_REMEDY = "close other programs on the GPU (nvidia-smi), and run it again"

CHECKS: tuple[GpuCheck, ...] = (
    GpuCheck(
        "driver",
        "stream.extensions.doctor.gpu.system:driver",
        "install NVIDIA's driver, 525 or newer; check nvidia-smi",
    ),
    GpuCheck(
        "torch",
        "stream.extensions.doctor.gpu.system:torch_cuda",
        "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128",
        needs=("driver",),
        limit_s=60,
    ),
    GpuCheck(
        "opengl", "stream.extensions.doctor.gpu.system:opengl", "install the driver's EGL (libnvidia-gl), or Mesa's"
    ),
    *(
        GpuCheck(f"kernel {name}", "stream.extensions.doctor.gpu.kernels:kernel", _KERNEL_REMEDY, name, ("torch",))
        for name in _FILES
    ),
    GpuCheck("shaders", "stream.extensions.doctor.gpu.kernels:shaders", "run without --backend gl", needs=("opengl",)),
    GpuCheck("store gl", "stream.extensions.doctor.gpu.stores:gl_store", "run without --backend gl", needs=("opengl",)),
    GpuCheck(
        "layers gl", "stream.extensions.doctor.gpu.stores:gl_layers", "run without --backend gl", needs=("store gl",)
    ),
    GpuCheck(
        "choice gl", "stream.extensions.doctor.gpu.relevance:gl_choice", "run without --backend gl", needs=("shaders",)
    ),
    GpuCheck("store cuda", "stream.extensions.doctor.gpu.stores:cuda_store", _STORE_REMEDY, needs=("torch",)),
    GpuCheck("streams", "stream.extensions.doctor.gpu.stores:streams", _STORE_REMEDY, needs=("torch",)),
    GpuCheck("pinned", "stream.extensions.doctor.gpu.stores:pinned_memory", _STORE_REMEDY, needs=("torch",)),
    GpuCheck("leaks", "stream.extensions.doctor.gpu.stores:leaks", _STORE_REMEDY, needs=("torch",)),
    GpuCheck("interop", "stream.extensions.doctor.gpu.sharing:interop", _SHARE_REMEDY, needs=("torch", "opengl")),
    GpuCheck("store glcuda", "stream.extensions.doctor.gpu.sharing:gl_cuda_store", _SHARE_REMEDY, needs=("interop",)),
    GpuCheck("ipc", "stream.extensions.doctor.gpu.sharing:ipc", _SHARE_REMEDY, needs=("torch",)),
    GpuCheck("allocator", "stream.extensions.doctor.gpu.model:allocator", _STORE_REMEDY, needs=("torch",)),
    GpuCheck("model float32", "stream.extensions.doctor.gpu.model:whole_model", _MODEL_REMEDY, "float32", ("torch",)),
    GpuCheck("model bfloat16", "stream.extensions.doctor.gpu.model:whole_model", _MODEL_REMEDY, "bfloat16", ("torch",)),
    GpuCheck("graphs", "stream.extensions.doctor.gpu.model:graphs", _MODEL_REMEDY, needs=("torch",)),
    GpuCheck("time texture", "stream.extensions.doctor.gpu.timing:texture", _SLOW_REMEDY, needs=("store cuda",)),
    GpuCheck("time allocate", "stream.extensions.doctor.gpu.timing:allocate", _SLOW_REMEDY, needs=("allocator",)),
    GpuCheck("time hops", "stream.extensions.doctor.gpu.timing:hops", _SLOW_REMEDY, needs=("ipc",)),
    GpuCheck(
        "time model",
        "stream.extensions.doctor.gpu.timing:model",
        _SLOW_REMEDY,
        needs=("graphs",),
        limit_s=90,
        memory_mb=12_000,
    ),
    GpuCheck("time gl", "stream.extensions.doctor.gpu.timing:opengl", _SLOW_REMEDY, needs=("store gl",)),
    GpuCheck(
        "gl against cpu",
        "stream.extensions.doctor.gpu.sizes:opengl",
        _SLOW_REMEDY,
        needs=("choice gl",),
        limit_s=90,
    ),
    GpuCheck("cuda against cpu", "stream.extensions.doctor.gpu.sizes:cuda", _SLOW_REMEDY, needs=("allocator",)),
    GpuCheck("time interop", "stream.extensions.doctor.gpu.timing:interop", _SLOW_REMEDY, needs=("store glcuda",)),
)
"""All checks: what the others need, single kernels, whole stores, sharing, the model, then times."""
