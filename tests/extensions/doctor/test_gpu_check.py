"""`doctor --gpu`: rows as they end, the file at every moment, and the exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stream.cli import main
from stream.extensions.doctor.gpu import runner
from stream.extensions.doctor.gpu.checks import GpuCheck
from stream.extensions.doctor.gpu.runner import GpuRow
from tests.support.network import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[3]
WORKS = GpuRow("driver", "works", "CUDA 13.0")
SLOW = GpuRow("time texture", "slow", "upload 3 ms (≤ 2)", figures=[{"name": "upload"}])
BROKEN = GpuRow("kernel upload", "broken", "level 3 differs", traceback="Traceback")
ABSENT = GpuRow("driver", "absent", "no NVIDIA driver")
LEFT_OUT = GpuRow("torch", "absent", "needs driver, which is absent", needed="driver")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Rows that the checks give; an exception among them is raised."""
    scripted_rows: list[Any] = []

    def examine_gpu(begin: Callable[[str], None]) -> Iterator[GpuRow]:
        for row in scripted_rows:
            if isinstance(row, BaseException):
                raise row
            begin(row.name)
            yield row

    monkeypatch.setattr(runner, "examine_gpu", examine_gpu)
    return scripted_rows


def test_rows_are_lines_and_a_file(rows: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows += [WORKS, SLOW]
    path = tmp_path / "r.json"
    assert main(["doctor", "--gpu", "--out", str(path)]) == 0, "a missed target is no failure"
    assert capsys.readouterr().out.splitlines() == [
        "works   driver            CUDA 13.0",
        "slow    time texture      upload 3 ms (≤ 2)",
        f"1 works, 1 slow; attach {path} to a report",
    ]
    report = json.loads(path.read_text())
    assert report["ended"] == "finished"
    assert [row["name"] for row in report["rows"]] == ["driver", "time texture"]


def test_a_failure_is_a_status(rows: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows += [WORKS, BROKEN]
    assert main(["doctor", "--gpu", "--out", str(tmp_path / "r.json")]) == 1
    assert "broken  kernel upload     level 3 differs" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--device", "cuda"], 1), (["--backend", "cuda"], 1)])
def test_no_gpu_is_a_failure_only_if_it_is_asked_for(
    rows: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], status: int
) -> None:
    rows += [ABSENT, LEFT_OUT, LEFT_OUT]
    assert main(["doctor", "--gpu", "--out", str(tmp_path / "r.json"), *options]) == status
    assert capsys.readouterr().out.splitlines()[:2] == [
        "absent  driver            no NVIDIA driver",
        "absent  2 checks          left out: needs driver, which is absent",
    ]


def test_one_object_for_scripts(rows: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows += [WORKS, BROKEN]
    path = tmp_path / "r.json"
    assert main(["doctor", "--gpu", "--json", "--out", str(path)]) == 1
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("error", "ended", "status"), [(KeyboardInterrupt(), "interrupted", 130), (OSError("odd"), "failed", 1)]
)
def test_the_file_keeps_the_rows_so_far(
    rows: list[Any], tmp_path: Path, error: BaseException, ended: str, status: int
) -> None:
    rows += [WORKS, error, BROKEN]
    path = tmp_path / "r.json"
    assert main(["doctor", "--gpu", "--out", str(path)]) == status
    report = json.loads(path.read_text())
    assert report["ended"] == ended
    assert [row["name"] for row in report["rows"]] == ["driver"]


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpu", "--out", str(tmp_path / "no" / "r.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_out_needs_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--out", "r.json"]) == 2
    assert "--out is the report of --gpu" in capsys.readouterr().err


INTERRUPTIBLE = """
import sys
from stream.extensions.doctor.gpu import checks, runner
from stream.extensions.doctor.gpu.checks import GpuCheck
bad = [GpuCheck(name, f"tests.support.bad_checks:{name}", "") for name in ("good", "hangs", "fails")]
runner.examine_gpu.__defaults__ = (bad, *runner.examine_gpu.__defaults__[1:])
from stream.start import main
sys.argv = ["run_stream.py", "doctor", "--gpu", "--out", sys.argv[1]]
sys.exit(main())
"""


def test_ctrl_c_in_the_middle_of_a_check_keeps_the_rows(tmp_path: Path) -> None:
    """The real command, while a check hangs; its process ends with the command."""
    path = tmp_path / "r.json"
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        until(lambda: path.exists() and '"good"' in path.read_text(), LIMIT_S)
        assert json.loads(path.read_text())["ended"] == "running"
        os.kill(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert output.splitlines()[-1].startswith("1 works; attach ")
    report = json.loads(path.read_text())
    assert report["ended"] == "interrupted"
    assert [row["name"] for row in report["rows"]] == ["good"]


def test_without_a_gpu_opengl_in_software_is_checked(tmp_path: Path) -> None:
    """The real command on this machine, with the checks that need no GPU."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    row = runner.run_check(GpuCheck("driver", "stream.extensions.doctor.gpu.system:driver", ""))
    assert row.state == "absent"
    assert row.finding.endswith("needs a GPU, driver 525+, CUDA torch")
