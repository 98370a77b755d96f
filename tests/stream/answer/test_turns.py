"""Table of clients: the order of turns, and their limits."""

from __future__ import annotations

from stream.answer.turns import ClientTable
from stream.untrusted import CLIENTS_MAX

A, B, C = b"a", b"b", b"c"


def table_of(*clients: bytes) -> ClientTable:
    table = ClientTable()
    for client in clients:
        table.add(client)
    return table


def turns(table: ClientTable) -> list[bytes]:
    """Clients of the remaining turns, in order."""
    clients = []
    while (client := table.pop_next()) is not None:
        clients.append(client)
    return clients


def test_turns_come_in_the_order_of_requests_and_a_client_that_had_one_queues_last() -> None:
    table = table_of(A, B, C)
    for client in (B, A, C):
        table.enqueue(client)
    assert table.pop_next() == B
    table.enqueue(B)
    assert turns(table) == [A, C, B]


def test_a_second_request_keeps_the_place() -> None:
    table = table_of(A, B)
    for client in (A, B, A):
        table.enqueue(client)
    assert turns(table) == [A, B]


def test_a_client_waits_for_at_most_one_answer_of_each_other_client() -> None:
    table = table_of(A, B, C)
    for client in (A, B, C):
        table.enqueue(client)
    clients = []
    for _ in range(9):
        client = table.pop_next()
        assert client is not None
        clients.append(client)
        table.enqueue(client)
    assert clients == [A, B, C] * 3


def test_unknown_clients_get_no_turn() -> None:
    table = table_of(A)
    table.enqueue(B)
    assert table.pop_next() is None
    table.dequeue(B)
    table.remove(B)
    assert (len(table), list(table)) == (1, [A])


def test_a_client_that_withdraws_its_request_may_make_another() -> None:
    table = table_of(A, B)
    table.enqueue(A)
    table.enqueue(B)
    table.dequeue(A)
    table.enqueue(A)
    assert turns(table) == [B, A]


def test_a_client_that_leaves_is_removed_with_its_place() -> None:
    table = table_of(A, B)
    table.enqueue(A)
    table.enqueue(B)
    table.remove(A)
    assert A not in table
    assert turns(table) == [B]


def test_clients_may_leave_during_iteration() -> None:
    table = table_of(A, B, C)
    for client in table:
        table.remove(client)
    assert len(table) == 0


def test_a_client_that_connects_again_is_counted_once() -> None:
    table = table_of(A, A)
    assert (len(table), A in table, B in table) == (1, True, False)


def test_the_table_is_full_until_a_client_leaves() -> None:
    table = table_of(*(bytes([number]) for number in range(CLIENTS_MAX)))
    assert table.full
    table.remove(bytes([0]))
    assert not table.full
