"""Ring of fragments: whole groups, bounded in time and bytes, and the part around a moment."""

from __future__ import annotations

from stream.events import VideoFragment
from stream.extensions.clips.ring import FragmentRing, continues
from tests.support.fragments import fragment


def starts(fragments: list[VideoFragment]) -> list[float]:
    return [fragment.start_s for fragment in fragments]


def ring(seconds: int, *, group: int = 2, keep_s: float = 100.0, max_bytes: int = 10_000) -> FragmentRing:
    buffer = FragmentRing(keep_s, max_bytes)
    for second in range(seconds):
        buffer.add(fragment(second, key=second % group == 0))
    return buffer


def test_a_part_begins_with_the_key_frame_before_it_and_ends_behind_it() -> None:
    buffer = ring(20)
    assert starts(buffer.around(10.0, 3.0, 2.0)) == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    assert starts(buffer.around(10.0, 4.0, 2.5)) == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]


def test_a_part_at_the_beginning_or_the_end_is_shorter() -> None:
    buffer = ring(6)
    assert starts(buffer.around(1.0, 5.0, 2.0)) == [0.0, 1.0, 2.0]
    assert starts(buffer.around(5.5, 1.0, 9.0)) == [4.0, 5.0]
    assert FragmentRing(10, 100).around(1.0, 5.0, 5.0) == []


def test_old_groups_leave_the_ring() -> None:
    buffer = ring(60, keep_s=10)
    assert starts(buffer.around(30.0, 50.0, 50.0)) == [*range(50, 60)]
    assert buffer.size_bytes == 100


def test_the_ring_holds_few_bytes_whatever_comes() -> None:
    buffer = ring(60, max_bytes=75)
    assert starts(buffer.around(59.0, 50.0, 50.0)) == [*range(54, 60)]
    endless = ring(60, group=1000, max_bytes=75)
    assert (len(endless), endless.size_bytes) == (0, 0)
    endless.add(fragment(60.0))
    assert starts(endless.around(60.0, 5.0, 5.0)) == [60.0]


def test_fragments_without_their_key_frame_are_dropped() -> None:
    buffer = FragmentRing(100, 1000)
    buffer.add(fragment(0.0, key=False))
    buffer.add(fragment(1.0))
    buffer.add(fragment(3.0, key=False))  # one is missing
    assert starts(buffer.around(1.0, 5.0, 5.0)) == [1.0]


def test_a_part_never_spans_two_tracks() -> None:
    buffer = FragmentRing(100, 1000)
    for second in range(4):
        buffer.add(fragment(second))
    for second in range(4, 8):
        buffer.add(fragment(second, init=b"other size", track_s=second - 4))
    for second in range(9, 12):  # the same size again, after an outage
        buffer.add(fragment(second, init=b"other size", track_s=second - 9))
    assert starts(buffer.around(2.0, 1.0, 5.0)) == [1.0, 2.0, 3.0]
    assert starts(buffer.around(5.0, 5.0, 5.0)) == [4.0, 5.0, 6.0, 7.0]
    assert starts(buffer.around(9.5, 5.0, 5.0)) == [9.0, 10.0, 11.0]
    assert starts(buffer.around(8.5, 5.0, 5.0)) == [4.0, 5.0, 6.0, 7.0]


def test_rounded_times_continue_a_track() -> None:
    assert continues(fragment(1.0004), fragment(0.0))
    assert not continues(fragment(1.5), fragment(0.0))
    assert not continues(fragment(0.0), fragment(0.0))
