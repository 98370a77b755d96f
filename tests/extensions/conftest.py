"""Fixtures that every test of an extension uses."""

from __future__ import annotations

from tests.stream.conftest import _shared_forks

__all__ = ["_shared_forks"]
