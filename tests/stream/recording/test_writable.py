"""Obstacles to writing: the reason is that of the system."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from stream.recording.writable import write_obstacle


@pytest.mark.parametrize(("flags", "reason"), [(0, "Permission denied"), (os.ST_RDONLY, "Read-only file system")])
def test_the_reason_is_that_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, reason: str
) -> None:
    assert write_obstacle(tmp_path) is None
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    assert write_obstacle(tmp_path) == reason
