"""Credits and one slot: what a sender may send, and what is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.mailbox import Mailbox


def test_an_item_waits_until_a_credit_comes() -> None:
    box: Mailbox[str] = Mailbox()
    box.put("a")
    assert box.full
    assert not box.ready
    box.grant()
    assert box.ready
    assert box.take() == "a"
    assert not box.full


def test_a_credit_waits_until_an_item_comes() -> None:
    box: Mailbox[str] = Mailbox()
    box.grant(2)
    assert not box.ready
    for item in ("a", "b"):
        box.put(item)
        assert box.take() == item
    box.put("c")
    assert not box.ready


def test_a_newer_item_replaces_the_waiting_one_and_is_counted() -> None:
    box: Mailbox[str] = Mailbox()
    for item in ("a", "b", "c"):
        box.put(item)
    assert box.waiting == "c"
    box.grant()
    assert box.take() == "c"
    assert box.waiting is None
    assert box.replaced == 2


def test_what_must_not_be_lost_is_merged_into_the_newer_item() -> None:
    box: Mailbox[tuple[int, str]] = Mailbox(lambda old, new: (new[0], old[1] + new[1]))
    for item in ((1, "a"), (2, "b"), (3, "c")):
        box.put(item)
    box.grant()
    assert box.take() == (3, "abc")


def test_nothing_can_be_taken_without_a_credit() -> None:
    box: Mailbox[str] = Mailbox()
    box.put("a")
    with pytest.raises(LookupError, match="no credit"):
        box.take()


def test_nothing_can_be_taken_from_an_empty_slot() -> None:
    box: Mailbox[str] = Mailbox()
    box.grant()
    with pytest.raises(LookupError, match="slot is empty"):
        box.take()


@pytest.mark.parametrize("count", [0, -1])
def test_a_grant_is_at_least_one_credit(count: int) -> None:
    with pytest.raises(ValueError, match="at least one credit"):
        Mailbox().grant(count)


@given(st.lists(st.sampled_from(["put", "grant"]), max_size=60))
def test_every_item_is_taken_replaced_or_waiting_and_the_taken_ones_are_the_newest(steps: list[str]) -> None:
    box: Mailbox[int] = Mailbox()
    made, taken, credits = 0, [], 0
    for step in steps:
        if step == "put":
            box.put(made)
            made += 1
        else:
            box.grant()
            credits += 1
        while box.ready:
            taken.append(box.take())
            assert taken[-1] == made - 1
    assert len(taken) + box.replaced + box.full == made
    assert len(taken) <= credits
    assert taken == sorted(set(taken))
