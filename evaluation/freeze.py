"""Record of the suites: `python -m evaluation.freeze` writes `frozen_suites.json` anew.

That is done once, before anything is measured. Afterwards a test holds the code to the file.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from evaluation.events.sets import FIRST_SEEDS, set_hash, set_parameters
from evaluation.suites import SUITES, suite_hash, suite_samples

FROZEN = Path(__file__).with_name("frozen_suites.json")

LIBRARIES = ("matplotlib", "numpy", "opencv-python-headless", "pillow")
"""Fonts and rounding come from these; with other versions places may differ by a pixel, and so do the hashes."""

THUMBNAILS = 3
_THUMBNAIL_PX = 4


def describe_suites() -> dict[str, Any]:
    """Versions of libraries; of every suite the hashes of its sets, its parameters, and thumbnails of its first
    pictures; of both sets of `stream-events` hash and parameters."""
    return {
        "versions": {library: version(library) for library in LIBRARIES},
        "suites": {
            name: {
                "hash": suite_hash(name),
                "report_hash": suite_hash(name, "report"),
                "parameters": suite.parameters,
                "thumbnails": thumbnails(name),
            }
            for name, suite in SUITES.items()
        },
        "events": {name: {"hash": set_hash(name), "parameters": set_parameters(name)} for name in FIRST_SEEDS},
    }


def thumbnails(name: str) -> list[list[int]]:
    """The last frames of the suite's first samples, shrunk to 4x4 and flattened: [3, 48] levels."""
    shrunk = []
    for sample in suite_samples(name, THUMBNAILS):
        small = cv2.resize(sample.clip.frames[-1], (_THUMBNAIL_PX, _THUMBNAIL_PX), interpolation=cv2.INTER_AREA)
        shrunk.append([int(level) for level in np.ravel(small)])
    return shrunk


def main() -> None:
    """Write the file."""
    FROZEN.write_text(json.dumps(describe_suites(), indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
