"""JSON from elsewhere: what is beyond the limits is a ValueError, never a RecursionError."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arr_coc.bounded_json import DEPTH_MAX, parse_json, read_json


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("text", ["7", '"[[["', '{"a": [1, {"b": null}]}', nested(DEPTH_MAX)])
def test_json_within_the_limits_is_read(text: str) -> None:
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize("text", [nested(DEPTH_MAX + 1), nested(900), "[" * 10**6, '{"a":' * 10**5, nested(10**6)])
def test_deeper_nesting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nested deeper than 64 levels"):
        parse_json(text)


@pytest.mark.parametrize("text", ["", "{", "nan", "9" * 5000])
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)


def test_a_file_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": 1}' + " " * (1 << 20))
    assert read_json(path) == {"a": 1}
    with pytest.raises(ValueError, match="more than 1 MiB"):
        read_json(path, bytes_max=1 << 20)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="more than 16 MiB"):
        read_json(path)
