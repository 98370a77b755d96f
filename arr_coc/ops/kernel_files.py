"""Where the sources of kernels lie: in `kernels/` of a checkout, or where an installation has put them."""

from __future__ import annotations

import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2] / "kernels"

INSTALLED = "share/arr-coc-stream/kernels"
"""Below the environment's folder, as pyproject.toml has it."""


def kernel_folder() -> Path:
    """The checkout's folder; else the installed one, whether it is there or not.

    Beside an installed `arr_coc` another package may be called `kernels`, so a folder of that name is not enough.
    """
    if (CHECKOUT / "texture.cuh").is_file():
        return CHECKOUT
    return Path(sysconfig.get_path("data")) / INSTALLED
