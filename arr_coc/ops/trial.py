"""Finds out which store works here: by using one, because drivers promise more than they keep.

    python -m arr_coc.ops.trial gl

prints what holds the texture with status 0, or why it cannot be used with status 1. Without a name it tries `auto`.
"""

from __future__ import annotations

import sys
from typing import cast

import numpy as np

from arr_coc.errors import StoreError
from arr_coc.ops.planes import PlaneFormat
from arr_coc.ops.store import Backend, open_store
from arr_coc.types import LEVELS, TILE_PX, FramePlanes, FrameStamp

GREY = 128


def try_store(backend: Backend = "auto") -> str:
    """The name of the store that `backend` means here; see `tried`."""
    return tried(backend)[0]


def tried(backend: Backend) -> tuple[str, str]:
    """The name of the store that `backend` means here and what holds its texture: it was opened, written, read back and
    closed.

    Raises BackendMissing where it needs what is not here, DeviceLost where its hardware gave up.
    """
    planes = FramePlanes("gray", (np.full((TILE_PX, TILE_PX), GREY, np.uint8),))
    store = open_store(PlaneFormat.of(planes), backend)
    try:
        store.update(planes, FrameStamp(0, 0, 0))
        with store.lease() as view:
            view.read(LEVELS - 1)
        return store.backend, store.hardware
    finally:
        store.close()


def main() -> int:
    try:
        print(tried(cast(Backend, next(iter(sys.argv[1:]), "auto")))[1])
    except StoreError as error:
        print(" ".join(str(error).split()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
