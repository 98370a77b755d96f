"""Where a stream's time begins and ends, from what containers declare."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from stream.sources.container import declared_end_ns, duration_ns_of, origin_of, rate_of

MS = 1_000_000


def container(start_ms: int | None = 0, duration_ms: int | None = None, streams: int = 1) -> Any:
    def microseconds(value_ms: int | None) -> int | None:
        return None if value_ms is None else value_ms * 1000

    return SimpleNamespace(
        start_time=microseconds(start_ms), duration=microseconds(duration_ms), streams=[object()] * streams
    )


def stream(start_ms: int | None = 0, duration_ms: int | None = None, tag: str = "") -> Any:
    metadata = {"DURATION": tag} if tag else {}
    return SimpleNamespace(start_time=start_ms, duration=duration_ms, time_base=Fraction(1, 1000), metadata=metadata)


@pytest.mark.parametrize(
    ("container_ms", "stream_ms", "origin_ms"),
    [
        (0, 0, 0),
        (0, 3, 0),
        (None, None, 0),
        (1400, 1400, 1400),
        (1400, 1480, 1400),
        (-21, 0, 0),
        (-80, -80, -80),
    ],
)
def test_origin(container_ms: int | None, stream_ms: int | None, origin_ms: int) -> None:
    assert origin_of(container(container_ms), stream(stream_ms)) == Fraction(origin_ms, 1000)


def test_origin_is_the_streams_own_exact_start_where_only_rounding_differs() -> None:
    video = stream()
    video.start_time, video.time_base = 1, Fraction(1, 3)
    whole = container()
    whole.start_time = 333_333
    assert origin_of(whole, video) == Fraction(1, 3)


def test_the_end_is_the_streams_own() -> None:
    assert declared_end_ns(container(0, 9000), stream(100, 2000)) == 2100 * MS
    assert declared_end_ns(container(1400, 9000), stream(1400, 2000)) == 2000 * MS
    assert declared_end_ns(container(0, 9000, streams=2), stream(tag="00:01:02.500000000")) == 62_500 * MS


def test_the_containers_end_counts_for_a_stream_alone() -> None:
    assert declared_end_ns(container(0, 9000), stream()) == 9000 * MS
    assert declared_end_ns(container(0, 9000, streams=2), stream()) is None
    assert declared_end_ns(container(0, None), stream()) is None
    assert declared_end_ns(container(0, 9000, streams=2), stream(tag="soon")) is None


def test_duration_falls_back_on_the_container() -> None:
    assert duration_ns_of(container(0, 9000, streams=2), stream()) == 9000 * MS
    assert duration_ns_of(container(0, None), stream()) is None
    assert duration_ns_of(container(0, 9000, streams=2), stream(0, 2000)) == 2000 * MS


def test_rate_is_the_average_else_the_guessed_one() -> None:
    assert rate_of(SimpleNamespace(average_rate=Fraction(24), guessed_rate=Fraction(25))) == 24
    assert rate_of(SimpleNamespace(average_rate=None, guessed_rate=Fraction(25))) == 25
    assert rate_of(SimpleNamespace(average_rate=None, guessed_rate=None)) is None
