"""Sheet of pictures with their boxes, of which what is not shown is dimmed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from evaluation.errors import PicturesError
from evaluation.output import write
from evaluation.real.choices import Seen, seen
from evaluation.real.frames import ShownFrame, shown_frames
from evaluation.real.labels import Folders, LabelledFrame, labelled_frames
from evaluation.strategies.base import Budget

PICTURES = 24
COLUMNS = 4
"""Pairs of pictures in a row."""

CELL_PX = (208, 150)
"""Width and height of one picture."""

BUDGETS = (Budget(27), Budget(10))

COARSE = 0.6
DIM = 0.25
"""Brightness of what is seen at less than full resolution, and of what is not seen."""

GREEN = (80, 255, 80)
QUALITY = 82

Bgr = npt.NDArray[np.uint8]


def chosen_labels(labels: Sequence[LabelledFrame]) -> list[LabelledFrame]:
    """Return up to `PICTURES` labelled frames whose licence lets them be shown, spread over as many sources as there
    are, and evenly over each."""
    by_source: dict[str, list[LabelledFrame]] = {}
    for label in labels:
        if label.source.publish:
            by_source.setdefault(label.source.name, []).append(label)
    counts = dict.fromkeys(by_source, 0)
    while sum(counts.values()) < PICTURES and any(counts[name] < len(of) for name, of in by_source.items()):
        for name, of_source in by_source.items():
            if counts[name] < len(of_source) and sum(counts.values()) < PICTURES:
                counts[name] += 1
    chosen = []
    for name, of_source in by_source.items():
        places = (np.arange(counts[name]) + 0.5) * len(of_source) / max(1, counts[name])
        chosen += [of_source[int(place)] for place in places]
    return chosen


def draw_sheet(folders: Folders, strategy: str, path: Path) -> None:
    """Write a JPEG: two pictures for each labelled frame, one for each budget. Raises PicturesError if no picture is
    there, ResultsError if the file cannot be written."""
    pairs = []
    for frame in shown_frames(chosen_labels(labelled_frames()), folders):
        shown = seen(frame, [strategy], BUDGETS)
        pairs.append(np.hstack([_cell(frame, shown[strategy, budget]) for budget in BUDGETS]))
    if not pairs:
        raise PicturesError("no picture of the sheet is there; fetch them and give --clips and --pictures")
    pairs += [np.zeros_like(pairs[0])] * (-len(pairs) % COLUMNS)
    rows = [np.hstack(pairs[place : place + COLUMNS]) for place in range(0, len(pairs), COLUMNS)]
    written, jpeg = cv2.imencode(".jpg", np.vstack(rows), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    assert written
    write(path, jpeg.tobytes())


def _cell(frame: ShownFrame, shown: Seen) -> Bgr:
    """One frame in a cell, dimmed by how it is seen, with its boxes."""
    height_px, width_px = frame.image.shape[:2]
    light = np.where(shown.full > 0, 1.0, np.where(shown.any > 0, COARSE, DIM)).astype(np.float32)
    light = cv2.resize(light, (width_px, height_px), interpolation=cv2.INTER_NEAREST)
    picture = (frame.image[..., ::-1] * light[..., None]).astype(np.uint8)
    scale = min(CELL_PX[0] / width_px, CELL_PX[1] / height_px)
    small = cv2.resize(picture, (int(width_px * scale), int(height_px * scale)), interpolation=cv2.INTER_AREA)
    down, across = small.shape[0] / frame.label.size_px[1], small.shape[1] / frame.label.size_px[0]
    for box in frame.label.boxes:
        left, top, right, bottom = box.box
        first = int(left * across), int(top * down)
        cv2.rectangle(small, first, (int(right * across) - 1, int(bottom * down) - 1), GREEN, 1)
    cell = np.zeros((CELL_PX[1] + 2, CELL_PX[0] + 2, 3), np.uint8)
    cell[: small.shape[0], : small.shape[1]] = small
    return cell
