"""Waiting of OpenMP threads: set before torch loads OpenMP, in every process, and never against the user's choice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

AT_TORCH = """
import importlib, os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(*(os.environ.get(each, "-") for each in sys.argv[2:]))
            sys.stdout.flush()
            os._exit(0)
sys.meta_path.insert(0, Watch())
for name in sys.argv[1].split():
    importlib.import_module(name)
import torch
"""
"""Import modules, and print the variables at the moment when torch is imported."""


def variables_at_torch(modules: str, **settings: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-c", AT_TORCH, modules, *VARIABLES]
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60, env={**environment, **settings}
    )
    return run.stdout.split()


@pytest.mark.parametrize(
    "modules",
    [
        "arr_coc.model",
        "arr_coc.adaptation.adapt",
        "arr_coc.finetune.collator",
        "stream.runtime.answer_worker",
        "stream.runtime.frame_worker",
        "stream.config stream.runtime.frame_stages",
        "stream.extensions.web.comparison.worker",
        "stream.extensions.adapt.run",
        "stream.extensions.fleet.on_ray.hosts",
        "evaluation.run",
        "evaluation.regression",
        "training.vlm",
        "training.allocator",
        "benchmarks.allocate",
    ],
)
def test_threads_wait_without_spinning_wherever_torch_is_loaded(modules: str) -> None:
    assert variables_at_torch(modules) == ["PASSIVE", "-", "-"]


@pytest.mark.parametrize("name", VARIABLES)
def test_the_users_own_way_of_waiting_holds(name: str) -> None:
    assert variables_at_torch("arr_coc", **{name: "7"}) == ["7" if name == variable else "-" for variable in VARIABLES]
