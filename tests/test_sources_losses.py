"""What a file lost, given out before the frame that is shown after it."""

from __future__ import annotations

from stream.sources.base import SkippedItem
from stream.sources.losses import LossLedger


def test_a_loss_waits_for_the_frame_that_is_shown_after_it() -> None:
    ledger = LossLedger()
    ledger.lost(31, "bad", 300, 3_000)
    assert ledger.before(290) == ()
    assert ledger.before(300) == ()
    assert ledger.before(310) == (SkippedItem("packet 31", "bad", 3_000),)
    assert ledger.before(320) == ()


def test_neighbours_are_one_item_with_the_first_ones_time() -> None:
    ledger = LossLedger()
    for number in (4, 5, 6, 9):
        ledger.lost(number, f"reason {number}", number * 10, number)
    assert ledger.rest() == (SkippedItem("packets 4-6", "reason 4", 4, 3), SkippedItem("packet 9", "reason 9", 9))
    assert ledger.rest() == ()


def test_what_fails_twice_counts_once() -> None:
    ledger = LossLedger()
    ledger.lost(5, "bad", None, None)
    ledger.lost(5, "bad again", None, None)
    assert ledger.rest() == (SkippedItem("packet 5", "bad"),)


def test_without_pts_a_loss_comes_with_the_next_frame() -> None:
    ledger = LossLedger()
    ledger.lost(1, "bad", None, None)
    assert ledger.before(0) == (SkippedItem("packet 1", "bad"),)
    ledger.lost(3, "bad", 50, 5)
    assert ledger.before(None) == (SkippedItem("packet 3", "bad", 5),)


def test_a_packet_told_late_is_named_with_its_doubt() -> None:
    ledger = LossLedger()
    ledger.lost(33, "bad", None, None, exact=False)
    assert ledger.rest()[0].what == "packet 33 or one just before"
