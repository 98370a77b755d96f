"""Places of the kernels, the presets and the bundled model."""

from __future__ import annotations

import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]

INSTALLED = "share/arr-coc-stream"
"""Below the environment's folder, as pyproject.toml has it."""


def kernel_folder() -> Path:
    """Sources of kernels, and what nvcc made of them."""
    return _folder("kernels", "texture.cuh")


def preset_folder() -> Path:
    """Configurations by name, `NAME.toml`."""
    return _folder("configs", "demo.toml")


def presets() -> list[str]:
    """Return the names of the presets."""
    return sorted(path.stem for path in preset_folder().glob("*.toml"))


def bundled_folder() -> Path:
    """Return the bundled model, whether this installation has it or not."""
    return _folder("models/scenes-tiny", "config.json")


def _folder(name: str, holds: str) -> Path:
    """Return the checkout's folder if it holds that file; else the installed one.

    Beside an installed `arr_coc` another package may have a folder of that name, so its existence is not enough.
    """
    folder = CHECKOUT / name
    if (folder / holds).is_file():
        return folder
    return Path(sysconfig.get_path("data")) / INSTALLED / name
