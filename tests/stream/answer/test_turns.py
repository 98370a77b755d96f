"""Table of clients: the order of turns, and their limits."""

from __future__ import annotations

import pytest

from stream.answer.turns import ClientTable
from stream.untrusted import CLIENTS_MAX

ROUND = ", turn a, request a, turn b, request b, turn c, request c"


@pytest.mark.parametrize(
    ("steps", "turns", "clients"),
    [
        pytest.param("request b, request a, request c, turn b, request b", "acb", "abc", id="order of requests"),
        pytest.param("request a, request b, request a", "ab", "abc", id="a second request keeps the place"),
        pytest.param("request a, request b, request c" + ROUND * 3, "abc", "abc", id="one answer of each other client"),
        pytest.param("request x", "", "abc", id="unknown clients get no turn"),
        pytest.param("request a, withdraw x, leave x", "a", "abc", id="unknown clients may withdraw and leave"),
        pytest.param("request a, request b, withdraw a, request a", "ba", "abc", id="another request after withdrawal"),
        pytest.param("request a, request b, leave a", "b", "bc", id="a client leaves with its place"),
        pytest.param("request a, request b, connect a", "ab", "abc", id="a client that connects again is counted once"),
    ],
)
def test_turns(steps: str, turns: str, clients: str) -> None:
    """`turns` are those that remain after the steps."""
    table = ClientTable()
    actions = {"connect": table.add, "request": table.enqueue, "withdraw": table.dequeue, "leave": table.remove}
    for client in "abc":
        table.add(client.encode())
    for step in steps.split(", "):
        action, client = step.split()
        if action == "turn":
            assert table.pop_next() == client.encode()
        else:
            actions[action](client.encode())
    assert (len(table), b"".join(table).decode()) == (len(clients), clients)
    assert all((client.encode() in table) == (client in clients) for client in "abcx")
    assert [table.pop_next() for _ in range(len(turns) + 1)] == [*(client.encode() for client in turns), None]


def test_clients_may_leave_during_iteration() -> None:
    table = ClientTable()
    for client in (b"a", b"b", b"c"):
        table.add(client)
    for client in table:
        table.remove(client)
    assert len(table) == 0


def test_the_table_is_full_until_a_client_leaves() -> None:
    table = ClientTable()
    for number in range(CLIENTS_MAX):
        assert not table.full
        table.add(bytes([number]))
    assert table.full
    table.remove(bytes([0]))
    assert not table.full
