"""Kernels compiled by NVRTC: by the library if it is here, and its errors by one that is made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from arr_coc.backends.cuda import nvrtc
from arr_coc.backends.cuda.device import SIGNATURES, KernelSet
from arr_coc.backends.cuda.nvrtc import compile_source, nvrtc_version
from arr_coc.errors import BackendMissing, StoreError
from tests.cuda_on_cpu.machine import CpuMachine

FILES = sorted({signature.file for signature in SIGNATURES.values()})


@pytest.fixture
def library() -> None:
    """NVRTC itself. Skips the test without it."""
    try:
        nvrtc_version()
    except BackendMissing:
        pytest.skip("no libnvrtc here: pip install nvidia-cuda-nvrtc, and set LD_LIBRARY_PATH")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
def test_every_source_compiles(library: None, file: str, capability: tuple[int, int]) -> None:
    assert compile_source(file, capability)[:4] == b"\x7fELF"


def test_a_source_with_an_error_is_named(library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.cu").write_text("this is no C++")
    monkeypatch.setattr(nvrtc, "kernel_folder", lambda: tmp_path)
    with pytest.raises(StoreError, match=r"NVRTC does not compile odd\.cu for sm_90: .*error"):
        compile_source("odd", (9, 0))


def test_a_device_that_is_too_new_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(nvrtcVersion=lambda: (0, 12, 0), nvrtcGetSupportedArchs=lambda: (0, [75, 80, 90]))
    monkeypatch.setattr(nvrtc, "_library", lambda: old)
    with pytest.raises(BackendMissing, match=r"NVRTC 12\.0 does not know sm_120; install a newer torch"):
        compile_source("upload", (12, 0))


def test_a_call_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    status = SimpleNamespace(name="NVRTC_ERROR_INTERNAL_ERROR")
    monkeypatch.setattr(nvrtc, "_library", lambda: SimpleNamespace(nvrtcGetSupportedArchs=lambda: (status,)))
    with pytest.raises(StoreError, match=r"nvrtcGetSupportedArchs failed \(NVRTC_ERROR_INTERNAL_ERROR\)"):
        compile_source("upload", (9, 0))


def test_without_the_library_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins
    from typing import Any

    imported = builtins.__import__

    def refuse(name: str, *arguments: Any) -> Any:
        if name == "cuda.bindings":
            raise ImportError(name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(BackendMissing, match="there is no NVRTC"):
        nvrtc_version()


def test_kernels_run_from_the_code_that_is_given(cuda_on_cpu: CpuMachine) -> None:
    from arr_coc.backends.cuda.device import shipped_ptx

    kernels = KernelSet((7, 5))
    with cuda_on_cpu.device.current():
        kernels.load()
        kernels.use("fetch", shipped_ptx("fetch"))
        with pytest.raises(BackendMissing, match="rejects the kernels"):
            kernels.use("fetch", b"nothing that a driver takes")
        with cuda_on_cpu.calls() as calls:
            kernels.load()
    assert "cuModuleLoadData" not in calls
