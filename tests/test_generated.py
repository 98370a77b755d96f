"""Files that are made from the code are as the code makes them."""

from __future__ import annotations

import pytest

from scripts.generate import GENERATED, ROOT


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_file_is_current(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert GENERATED[name](text) == text, "write it anew with make docs"
