"""Which texture stores a test can use here."""

from __future__ import annotations

import os
from functools import lru_cache

import pytest

from arr_coc.errors import StoreError
from arr_coc.ops.backends import try_store
from arr_coc.ops.store import Backend

BACKENDS: tuple[Backend, ...] = ("cpu", "gl", "cuda")

MUST_WORK_IN_CI = ("cpu", "gl")


def require(backend: Backend) -> None:
    """Skips the test where the store cannot run here, saying what to install; fails it where continuous integration
    must have it."""
    problem = _problem(backend)
    if problem is None:
        return
    if os.environ.get("CI") == "true" and backend in MUST_WORK_IN_CI:
        pytest.fail(f"the {backend} store must work in CI: {problem}")
    pytest.skip(f"no {backend} store here: {problem}")


def working() -> tuple[Backend, ...]:
    """Those that work here."""
    return tuple(backend for backend in BACKENDS if _problem(backend) is None)


@lru_cache(None)
def _problem(backend: Backend) -> str | None:
    try:
        try_store(backend)
    except StoreError as error:
        return str(error)
    return None


def prepare(backend: Backend, request: pytest.FixtureRequest) -> None:
    """As `require`; but where no CUDA device is, its store runs on one that the tests make of the CPU."""
    if backend == "cuda":
        request.getfixturevalue("cuda")
    else:
        require(backend)
