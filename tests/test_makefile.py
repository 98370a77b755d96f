"""The Makefile: each benchmark has a target, one that fails stops no other; a commit is checked as by `make check`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[1]
BY_THEMSELVES = {"benchmarks.gpu", "benchmarks.turns", "benchmarks.vllm"}


def listed(name: str) -> list[str]:
    """The programs of a variable of the Makefile."""
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    value = re.search(rf"^{name} := (.+)$", makefile, re.MULTILINE)
    assert value is not None
    groups = re.findall(r"\$\(addprefix ([\w.]+),([\w ]+)\)", value[1]) or [("benchmarks.", value[1])]
    return [prefix + program for prefix, programs in groups for program in programs.split()]


def programs() -> set[str]:
    return {
        f"{folder}.{path.stem}"
        for folder in ("benchmarks", "tests.soak")
        for path in (CHECKOUT / folder.replace(".", "/")).glob("*.py")
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    }


def test_every_benchmark_has_a_target_and_is_documented() -> None:
    assert {*listed("BENCHMARKS"), *listed("SOAKS"), *BY_THEMSELVES} == programs()
    documentation = (CHECKOUT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for program in programs():
        assert f"\n| `{program.rpartition('.')[2]}` | " in documentation


@pytest.mark.parametrize(("document", "least"), [("README.md", 5), ("benchmarks/README.md", 40)])
def test_every_row_of_figures_names_its_program(document: str, least: int) -> None:
    text = (CHECKOUT / document).read_text(encoding="utf-8")
    _, _, rows = text.partition("\n| measurement | program | ")
    lines = [line for line in rows.partition("\n\n")[0].splitlines()[2:] if line.startswith("|")]
    names = [line.split("|")[2].strip().strip("`") for line in lines]
    assert len(names) >= least
    assert set(names) <= {program.rpartition(".")[2] for program in programs()}


@pytest.mark.parametrize(
    ("target", "failing"),
    [("bench", ["benchmarks.cuts", "benchmarks.live"]), ("soak", ["tests.soak.chaos"]), ("bench", [])],
)
def test_a_failing_program_stops_no_other_and_is_named(tmp_path: Path, target: str, failing: list[str]) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
        + "".join(f'[ "$2" = {name} ] && exit 1\n' for name in failing)
        + "exit 0\n",
        encoding="utf-8",
    )
    python.chmod(0o755)
    (tmp_path / "venv" / ".ready").touch()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    process = subprocess.run(
        [make, target, f"VENV={tmp_path / 'venv'}"],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    ran = [call.removeprefix("-m ") for call in calls if call.startswith(("-m benchmarks.", "-m tests.soak."))]
    assert ran == listed("BENCHMARKS" if target == "bench" else "SOAKS")
    assert (process.returncode != 0) == bool(failing)
    assert (f"failed: {' '.join(failing)}\n" in process.stderr) == bool(failing)


def test_a_commit_is_checked_as_make_check_does() -> None:
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    match = re.search(r"^check:.*\n((?:\t.+\n)+)", makefile, re.MULTILINE)
    assert match is not None
    commands = [line.strip().replace("$(BIN)", ".venv/bin").removesuffix(" .") for line in match[1].splitlines()]
    hooks = yaml.safe_load((CHECKOUT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == commands
