"""Fixtures that every test may use."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from tests.support.peak_memory import complaint, largest_process_bytes

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")

os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # `nohup make test`: tests close their own terminals
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


CONCURRENT = ("watch", "Reading", "StageRunner", "Transport", "Heartbeat")
"""Names imported by a test module whose tests follow live sources, stages, links or supervised processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests whose result a busy machine could change, for `make test-loaded`."""
    for item in items:
        if isinstance(item, pytest.Function) and any(hasattr(item.module, name) for name in CONCURRENT):
            item.add_marker(pytest.mark.concurrent)


@pytest.fixture(autouse=True)
def _levels_of_loggers() -> Iterator[None]:
    """Takes back the levels that a command sets in its process: a later test would not see the warnings it expects."""
    yield
    for name in ("arr_coc", "stream"):
        logging.getLogger(name).setLevel(logging.NOTSET)


LARGEST_BYTES: list[int] = []
"""Of each process that runs tests, its largest resident size."""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Remembers how much memory a worker of pytest-xdist took; it is not called without workers."""
    LARGEST_BYTES.append(getattr(node, "workeroutput", {}).get("largest_bytes", 0))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run that took too much memory, unless there is a CUDA device, whose context takes gigabytes."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        LARGEST_BYTES.append(largest_process_bytes())
    largest_bytes = max(LARGEST_BYTES, default=0)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["largest_bytes"] = largest_bytes
        return
    problem = complaint(largest_bytes)
    if problem is not None:
        print(f"\n{problem}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Keeps torch to one thread: small tensors gain nothing from more, and results stay the same everywhere."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps the memories of runs out of the user's own folders."""
    os.environ["XDG_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("runtime"))


@pytest.fixture(autouse=True)
def _growth(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test in which the process grew by more than its mark `growth_max_bytes` allows."""
    if (mark := request.node.get_closest_marker("growth_max_bytes")) is None:
        yield
        return
    import stream.runtime.frame_stages  # noqa: F401  (a run's imports are no growth)

    before = psutil.Process().memory_info().rss
    yield
    assert psutil.Process().memory_info().rss - before < mark.args[0]


@pytest.fixture(scope="session")
def clips() -> Path:
    """The folder of real clips: `$ARR_COC_CLIPS`, or `../shared/clips` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "clips"
    folder = Path(os.environ.get("ARR_COC_CLIPS", beside))
    if not (folder / "manifest.json").is_file():
        pytest.skip(f"no real clips: {folder} has no manifest.json (set ARR_COC_CLIPS)")
    return folder


@pytest.fixture(scope="session")
def _cuda_machine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A GPU emulated on the CPU, if the machine has none."""
    from tests.cuda_on_cpu.machine import machine

    return machine(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def cuda_on_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """CUDA whose device is the CPU: `tests.cuda_on_cpu.machine.CpuMachine`."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here, which the other tests use; this one looks into a device on the CPU")
    from tests.cuda_on_cpu.machine import install

    on_cpu = request.getfixturevalue("_cuda_machine")
    install(on_cpu, monkeypatch.setattr)
    yield on_cpu
    on_cpu.recover()


@pytest.fixture
def cuda(request: pytest.FixtureRequest) -> None:
    """CUDA: the device that is here, or else one on the CPU."""
    import torch

    if not torch.cuda.is_available():
        request.getfixturevalue("cuda_on_cpu")
