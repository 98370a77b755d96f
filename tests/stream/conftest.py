"""Fixtures that every test of `stream` uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.children import forks_shared


@pytest.fixture(scope="session", autouse=True)
def _shared_forks(_own_state: None) -> Iterator[None]:
    with forks_shared():
        yield
