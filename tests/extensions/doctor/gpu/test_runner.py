"""Checks of the GPU that end in every way: each is one row, and nothing of them is left."""

from __future__ import annotations

import re
import subprocess
from importlib import import_module
from pathlib import Path

import psutil
import pytest

from arr_coc.types import NS_PER_S
from stream.extensions.doctor.gpu.checks import CHECKS, GpuCheck
from stream.extensions.doctor.gpu.runner import OUTPUT_BYTES, GpuRow, check_command, examine_gpu, run_check
from tests.support.clock import FakeClock
from tests.support.network import LIMIT_S

ROOT = Path(__file__).resolve().parents[4]


def bad(function: str, *needs: str, limit_s: float = LIMIT_S, memory_mb: int = 4000) -> GpuCheck:
    return GpuCheck(function, f"tests.support.bad_checks:{function}", "do this", "", needs, limit_s, memory_mb)


def test_a_check_that_works_reports_its_result() -> None:
    row = run_check(bad("good"))
    assert (row.name, row.state, row.finding, row.remedy) == ("good", "works", "as it should be", None)
    assert row.facts == {"answer": 42}
    assert row.output is row.traceback is None


def test_a_missed_target_is_slow_and_comes_first() -> None:
    row = run_check(bad("slow"))
    assert (row.state, row.remedy) == ("slow", "do this")
    assert row.finding == "hard 3 ms (≤ 2); easy 1 ms (≤ 2); free 9 ms"
    assert [figure.get("reached") for figure in row.figures] == [True, False, None]


def test_missing_parts_are_absent() -> None:
    row = run_check(bad("absent"))
    assert (row.state, row.finding, row.remedy) == ("absent", "not on this machine", "buy one")


@pytest.mark.parametrize(
    ("function", "finding", "where"),
    [
        ("fails", "level 3: 1 of 4 values differ", "in fails"),
        ("raises", r"KeyError: 'no such\nthing'", "in raises"),
        ("crashes", "crashed: SIGSEGV without a report", "in crashes"),
        ("aborts", "crashed: SIGABRT without a report", "device-side assert"),
        ("exits", "ended with status 7 without a report", "giving up"),
        ("crashes_afterwards", "crashed: SIGSEGV, after it reported: all well", "Segmentation fault"),
        ("no_such", "AttributeError: module 'tests.support.bad_checks' has no attribute 'no_such'", "getattr"),
    ],
)
def test_a_failure_is_one_line_with_a_traceback(function: str, finding: str, where: str) -> None:
    row = run_check(bad(function))
    assert (row.state, row.finding, row.remedy) == ("broken", finding, "do this")
    assert where in (row.traceback or "")


@pytest.mark.parametrize("function", ["hangs", "hangs_in_c"])
def test_a_check_that_hangs_is_killed(function: str) -> None:
    row = run_check(bad(function, limit_s=3))
    assert (row.state, row.finding) == ("broken", "did not end within 3 s")


def test_the_fault_handler_says_where_a_check_hangs() -> None:
    traceback = run_check(bad("hangs", limit_s=LIMIT_S / 4)).traceback or ""
    assert "about to hang" in traceback
    assert "in hangs" in traceback


def test_a_check_that_takes_all_memory_is_killed() -> None:
    row = run_check(bad("eats_memory", memory_mb=400))
    assert (row.state, row.finding) == ("broken", "took more than 400 MB of host memory")


def test_of_a_flood_of_output_the_end_is_kept() -> None:
    row = run_check(bad("floods"))
    assert row.finding == "after a flood"
    assert (row.output or "").endswith("the last line")
    assert len(row.output or "") <= OUTPUT_BYTES


def test_a_report_that_cannot_be_read_is_a_failure() -> None:
    row = run_check(bad("writes_garbage"))
    assert (row.state, row.finding) == ("broken", "gave an unreadable report")


def test_processes_that_a_check_leaves_are_killed() -> None:
    row = run_check(bad("leaves_a_child"))
    assert row.state == "works"
    try:
        psutil.Process(row.facts["pid"]).wait(LIMIT_S)
    except psutil.NoSuchProcess:
        return
    assert not psutil.pid_exists(row.facts["pid"])


def test_a_check_ends_with_its_parent() -> None:
    """Its stdin is the parent's, and ends with it."""
    command = check_command("tests.support.bad_checks:hangs", "", "1")
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(LIMIT_S) == 1


def test_a_check_is_left_out_if_one_that_it_needs_does_not_work() -> None:
    checks = [bad("good"), bad("absent"), bad("fails", "absent"), bad("raises", "good", "fails"), bad("slow", "good")]
    ran: list[str] = []

    def run(check: GpuCheck) -> GpuRow:
        return GpuRow(check.name, "absent" if check.name == "absent" else "works", "")

    rows = list(examine_gpu(checks, ran.append, run=run))
    assert ran == ["good", "absent", "slow"]
    assert [(row.state, row.needed) for row in rows] == [
        ("works", None),
        ("absent", None),
        ("absent", "absent"),
        ("absent", "absent"),
        ("works", None),
    ]
    assert rows[3].finding == "needs absent, which is absent"


def test_no_check_begins_after_five_minutes() -> None:
    clock = FakeClock()

    def run(check: GpuCheck) -> GpuRow:
        clock.advance(200 * NS_PER_S)
        return GpuRow(check.name, "works", "")

    rows = list(examine_gpu([bad("good"), bad("slow"), bad("fails")], clock=clock, run=run))
    assert [(row.state, row.finding) for row in rows[1:]] == [("works", ""), ("absent", "5 minutes are over")]


def test_every_check_exists_and_needs_earlier_ones() -> None:
    check_names: set[str] = set()
    for check in CHECKS:
        module, _, name = check.function.partition(":")
        assert callable(getattr(import_module(module), name))
        assert set(check.needs) <= check_names
        assert check.remedy
        assert check.name not in check_names
        check_names.add(check.name)


def test_every_row_is_explained() -> None:
    page = (ROOT / "docs" / "quickstart-gpu.md").read_text(encoding="utf-8")
    table = page.partition("| row |")[2].partition("\n\n")[0]
    explained = [name for line in table.splitlines()[2:] for name in re.findall(r"`([^`]*)`", line.split("|")[1])]
    assert explained == [check.name for check in CHECKS]
