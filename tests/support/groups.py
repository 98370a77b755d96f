"""Groups of pictures in small pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from arr_coc.allocation import group


@contextmanager
def nothing_near() -> Iterator[None]:
    """Patches hold what changed alone: most of a picture of a few tiles is near anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "NEAR_TILES", 0)
        yield
