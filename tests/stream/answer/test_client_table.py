"""Whose turn it is at an answer stage."""

from __future__ import annotations

from stream.answer.client_table import ClientTable
from stream.config import CLIENTS_MAX

A, B, C = b"a", b"b", b"c"


def joined(*clients: bytes) -> ClientTable:
    guests = ClientTable()
    for client in clients:
        guests.join(client, "what?")
    return guests


def turns(guests: ClientTable) -> list[bytes]:
    """Every turn that is left."""
    given = []
    while (client := guests.next()) is not None:
        given.append(client)
    return given


def test_turns_come_in_the_order_of_wanting_and_whoever_had_one_waits_behind_all_others() -> None:
    guests = joined(A, B, C)
    for client in (B, A, C):
        guests.want(client)
    assert guests.next() == B
    guests.want(B)
    assert turns(guests) == [A, C, B]


def test_wanting_again_keeps_the_place() -> None:
    guests = joined(A, B)
    for client in (A, B, A):
        guests.want(client)
    assert turns(guests) == [A, B]


def test_nobody_waits_for_more_than_one_answer_of_each_other() -> None:
    guests = joined(A, B, C)
    for client in (A, B, C):
        guests.want(client)
    given = []
    for _ in range(9):
        client = guests.next()
        assert client is not None
        given.append(client)
        guests.want(client)
    assert given == [A, B, C] * 3


def test_strangers_get_no_turn() -> None:
    guests = joined(A)
    guests.want(B)
    assert guests.next() is None
    guests.forgo(B)
    guests.leave(B)
    assert (len(guests), list(guests)) == (1, [A])


def test_whoever_forgoes_a_turn_stays_and_may_want_again() -> None:
    guests = joined(A, B)
    guests.want(A)
    guests.want(B)
    guests.forgo(A)
    guests.want(A)
    assert turns(guests) == [B, A]


def test_whoever_leaves_is_forgotten_with_its_place() -> None:
    guests = joined(A, B)
    guests.want(A)
    guests.want(B)
    guests.leave(A)
    assert guests.find(A) is None
    assert turns(guests) == [B]


def test_guests_may_leave_while_all_are_told_something() -> None:
    guests = joined(A, B, C)
    for client in guests:
        guests.leave(client)
    assert len(guests) == 0


def test_joining_again_brings_another_question() -> None:
    guests = joined(A)
    guests.join(A, "who?")
    guest = guests.find(A)
    assert guest is not None
    assert (guest.query, guest.answers, len(guests)) == ("who?", 0, 1)


def test_there_is_room_for_so_many_and_again_when_one_leaves() -> None:
    guests = joined(*(bytes([number]) for number in range(CLIENTS_MAX)))
    assert guests.full
    guests.leave(bytes([0]))
    assert not guests.full
