"""What `doctor --gpu` says about hardware beside the CPU store."""

from __future__ import annotations

import pytest

from stream.extensions.doctor.gpu import sizes
from stream.extensions.doctor.gpu.sizes import PARTS, SizeRow, changing_frames, measure, result_of, verdict
from tests.support.stores import require


def row(height_px: int, hardware_ms: float, cpu_ms: float) -> SizeRow:
    """A row whose parts take all the same time."""
    hardware, cpu = (dict.fromkeys(PARTS, value) for value in (hardware_ms, cpu_ms))
    return SizeRow((height_px, 2 * height_px), hardware, cpu)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [row(100, 2, 1), row(200, 2, 4), row(400, 2, 18)],
            "beats the CPU store from 400x200 on, 9 times as fast at 800x400",
        ),
        ([row(100, 1, 2), row(200, 2, 1), row(400, 2, 3)], "beats the CPU store from 800x400 on, 1.5 times"),
        ([row(100, 1, 60)], "beats the CPU store from 200x100 on, 60 times as fast at 200x100"),
        ([row(100, 4, 1), row(200, 2, 1)], "does not beat the CPU store up to 400x200; at best 0.5 times as fast"),
        ([row(100, 1, 2), row(200, 2, 1)], "does not beat the CPU store up to 400x200; at best 2 times as fast"),
    ],
)
def test_the_verdict_names_the_size_from_which_hardware_stays_ahead(rows: list[SizeRow], expected: str) -> None:
    assert verdict(rows).startswith(expected)


def test_the_result_has_each_size_and_each_part() -> None:
    result = result_of([row(100, 2, 1), row(200, 1, 3)], {"renderer": "x"}, software=True)
    names = [figure.name for figure in result.figures]
    assert names == ["200x100", "400x200", "update 400x200", "choice 400x200", "pixels 400x200"]
    assert [figure.value for figure in result.figures] == [0.5, 3, 3, 3, 3]
    assert result.software
    assert result.finding.startswith(
        "beats the CPU store from 400x200 on, 3 times as fast at 400x200; 200x100 0.5 times"
    )
    assert result.facts["hardware_and_cpu_ms"]["400x200"]["choice"] == [1, 3]


def test_both_stores_do_the_same_work() -> None:
    require("gl")
    finished: list[int] = []
    measured = measure("gl", (64, 96), lambda: finished.append(1), rounds=1)
    assert set(measured.hardware_ms) == set(measured.cpu_ms) == set(PARTS)
    assert all(value > 0 for side in (measured.hardware_ms, measured.cpu_ms) for value in side.values())
    assert len(finished) == 2 * 3 * (sizes.WARM_UP + 1)  # both stores, three parts


def test_a_tenth_of_the_picture_changes() -> None:
    first, second = changing_frames((320, 640))
    changed = (first.planes[0] != second.planes[0]).mean()
    assert changed == pytest.approx(0.1, abs=0.01)
