"""Report of the checks: lines of 80 columns, and a file without private names."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.extensions.doctor.gpu import report as report_module
from stream.extensions.doctor.gpu.checks import GpuCheck
from stream.extensions.doctor.gpu.report import COLUMNS, GpuReport, left_out_lines, row_text, summary_line
from stream.extensions.doctor.gpu.runner import GpuRow, run_check


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user with a home, a host and a folder, whose names are in no report."""
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box-17.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "grace")
    monkeypatch.setenv("HOME", "/home/grace")
    report_module._private.cache_clear()
    yield
    report_module._private.cache_clear()


def test_neither_user_nor_host_nor_folders_are_named(private: None) -> None:
    report = GpuReport()
    text = (
        f"/home/grace/cache/a.cubin on gpu-box-17.example.org (gpu-box-17) by grace, {sys.prefix}/lib/x.py, "
        f"{os.getcwd()}/stream/cli.py, /home/other/b.py, /root/c.py; graceful"
    )
    row = report.add(GpuRow("x", "broken", text, facts={text: [text]}, traceback=text, output=text))
    assert row.finding == (
        "~/cache/a.cubin on <host> (<host>) by <user>, <python>/lib/x.py, <program>/stream/cli.py, ~/b.py, ~/c.py; "
        "graceful"
    )
    report_json = report.as_json()
    for name in ("grace,", "gpu-box-17", "/home/", sys.prefix, os.getcwd(), "/root"):
        assert name not in report_json


def test_a_real_traceback_names_no_folder() -> None:
    report = GpuReport()
    report.add(run_check(GpuCheck("x", "tests.support.bad_checks:names_everybody", "")))
    report_json = report.as_json()
    assert "names_everybody" in report_json
    for folder in (os.getcwd(), sys.prefix, str(Path.home())):
        assert folder not in report_json


def test_a_line_has_80_columns_and_a_measurement_as_many_lines_as_it_needs() -> None:
    long = GpuRow("kernel upload", "broken", "level 3: 百 of 4096 values differ\x1b[2J\n" * 9)
    line = row_text(long)
    assert line.startswith("broken  kernel upload     level 3: 百 of")
    assert "\n" not in line
    assert line.endswith("…")
    timed = row_text(GpuRow("time texture", "slow", "upload 1 ms (≤ 2); " * 9, figures=[{"name": "upload"}]))
    assert len(timed.splitlines()) == 4
    assert all(len(part) <= COLUMNS for part in (*timed.splitlines(), line))
    assert "(software) llvmpipe" in row_text(GpuRow("opengl", "works", "llvmpipe", software=True))


def test_checks_that_were_left_out_share_a_line() -> None:
    rows = [
        GpuRow("driver", "absent", "no driver"),
        *(GpuRow(name, "absent", "needs driver, which is absent", needed="driver") for name in "abc"),
        GpuRow("d", "absent", "5 minutes are over", needed=""),
    ]
    assert list(left_out_lines(rows)) == [
        "absent  3 checks          left out: needs driver, which is absent",
        "absent  1 check           left out: 5 minutes are over",
    ]


def test_the_file_has_counts_environment_and_rows() -> None:
    report = GpuReport()
    report.add(GpuRow("driver", "works", "CUDA 13", facts={"cuda": "13.0"}, seconds=1.5))
    report.add(GpuRow("torch", "broken", "no", remedy="do this", traceback="Traceback"))
    assert summary_line(report, "r.json") == "1 works, 1 broken; attach r.json to a report"
    document = json.loads(report.as_json())
    assert (document["report"], document["ended"]) == ("gpu", "running")
    assert document["counts"] == {"works": 1, "slow": 0, "broken": 1, "absent": 0}
    assert document["environment"]["driver"] == {"cuda": "13.0"}
    assert {"cpu", "python", "torch"} <= document["environment"].keys()
    assert document["rows"][1] == {
        "name": "torch",
        "state": "broken",
        "finding": "no",
        "remedy": "do this",
        "seconds": 0.0,
        "traceback": "Traceback",
    }
