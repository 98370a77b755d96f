"""A long run stays as small as it was."""

from __future__ import annotations

import pytest

from benchmarks.soak import Samples, soak

FAKE = "tests.support.answer_models:FakeAnswerModel"


@pytest.mark.parametrize(("frames", "every_s"), [(1500, 4.0), pytest.param(100_000, 4.0, marks=pytest.mark.slow)])
def test_nothing_grows_over_many_frames(frames: int, every_s: float) -> None:
    result = soak(frames, model_loader=FAKE, every_s=every_s, sample_frames=100)
    assert result.summary.frames == frames
    assert result.summary.dropped == {}
    assert result.answers >= frames / 25 / every_s
    assert len(result.samples.frames) == frames // 100
    assert result.samples.faults() == []


def test_growth_is_seen() -> None:
    samples = Samples(list(range(0, 1000, 10)), {"leak": [20.0 * n for n in range(100)], "flat": [5.0] * 100})
    assert samples.growth("leak") == pytest.approx(20.0 * 79)
    assert samples.growth("flat") == pytest.approx(0.0, abs=1e-6)
    assert Samples([1], {"short": [1.0]}).growth("short") == 0.0
