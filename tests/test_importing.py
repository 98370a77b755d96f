"""Effects of importing a module: little is loaded, and no device, file or socket is opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LIGHT = {
    "stream.cli": {"torch", "transformers", "av", "cv2", "zmq", "rich", "numpy", "pydantic", "prometheus_client"},
    "stream.protocol.messages": {"torch", "cv2", "zmq"},
    "stream.runtime.frame_stages": {"stream.extensions.detections.feed", "stream.extensions.detections.message"},
    "arr_coc.qwen.grounding": {"torch", "numpy", "transformers"},
    "stream.runtime.worker_messages": {"torch", "av", "cv2"},
    "stream.runtime.session": {"torch", "transformers", "av"},
    "stream.runtime.frame_process": {"torch", "transformers", "av"},
    "stream.monitor.health": {"torch", "transformers", "av", "zmq"},
    "stream.extensions.live.display": {"torch", "transformers", "av"},
    "stream.extensions.doctor": {"torch", "transformers", "av"},
    "stream.extensions.web.comparison.process": {"torch", "transformers", "av"},
    "stream.extensions.web.access": {"starlette", "uvicorn", "zmq", "torch"},
    "stream.extensions.api.address": {"httpx2", "zmq", "torch"},
    "stream.extensions.mqtt.broker": {"paho", "zmq", "torch"},
    "stream.sinks.factory": {
        *("starlette", "uvicorn", "paho", "foxglove", "rosbags", "rerun", "opentelemetry", "prometheus_client"),
    },
    "stream.extensions.robotics.address": {"foxglove", "rosbags", "cv2", "zmq", "torch"},
    "stream.sinks.types": {"foxglove", "rosbags", "rerun", "opentelemetry", "starlette", "av", "cv2", "zmq", "torch"},
    "stream.sources.types": {"pyarrow", "av", "cv2", "zmq", "torch"},
    "stream.runtime.answer_worker": {"prometheus_client"},
    "stream.extensions.fleet.on_ray.run": {"ray", "torch", "transformers", "av", "prometheus_client"},
    "arr_coc.qwen.checkpoint": {"torch", "transformers"},
    "arr_coc.qwen.resize": {"torch", "transformers"},
    "arr_coc.hub": {"torch", "transformers"},
}
"""Modules that an import must not load: the command line, the parent of a supervised run, checks before a model."""


@pytest.mark.parametrize("module", LIGHT)
def test_importing_stays_light(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    assert not LIGHT[module] & set(loaded.stdout.split())


TOUCHES_NOTHING = """
import builtins, os, socket, sys
modules = sys.argv[1:]
import torch, numpy, cv2, msgspec, pydantic, typer, rich, pysubs2, zmq, av, transformers, PIL.Image
def forbid(*args, **kwargs):
    raise AssertionError(f"opened at import: {args}")
threads = torch.get_num_threads()
socket.socket.__init__ = forbid
real_open = builtins.open
def guarded(file, mode="r", *args, **kwargs):
    if set(mode) & set("wax+") or str(file).startswith("/dev/"):
        forbid(file, mode)
    return real_open(file, mode, *args, **kwargs)
builtins.open = guarded
import importlib
for module in modules:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in ("rerun", "ray"):  # extras that are too large for tests
            raise
assert torch.get_num_threads() == threads, "importing changed torch's threads"
assert not torch.cuda.is_initialized()
"""


def test_importing_touches_no_device_file_or_socket() -> None:
    paths = [path.relative_to(ROOT) for package in ("arr_coc", "stream") for path in (ROOT / package).rglob("*.py")]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    modules = sorted(name for name in names if not name.endswith("__main__"))
    process = subprocess.run(
        [sys.executable, "-c", TOUCHES_NOTHING, *modules], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert process.returncode == 0, process.stderr[-2000:]
