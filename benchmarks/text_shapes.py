"""Legibility of a line of text by the shape of the regions that show it, and the tokens that it takes.

    python -m benchmarks.text_shapes [--lines N] [--out FILE]

Lines of random letters and digits lie anywhere on the tiles of a picture. A reader knows where each character is, and
tells it from the other 61 by the nearest of their pictures, shown through the same regions; it misreads every texel by
an error whose standard deviation is half of the text's contrast. So only what regions leave of a character decides, and
equally for every shape. Tokens: regions of one shape that touch the line, for each 640 pixels of its length.
"""

from __future__ import annotations

import argparse
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from arr_coc.ops.backends import open_store
from arr_coc.ops.regions import shape_grid
from arr_coc.ops.store.base import TextureStore
from arr_coc.ops.store.planes import PlaneFormat
from arr_coc.types import REGION_SHAPES, TILE_PX, FramePlanes, FrameStamp, TileGrid
from benchmarks.support.harness import write_report
from stream.bench.report import machine

RESULTS = Path(__file__).parent / "results"
CHARACTERS = string.ascii_letters + string.digits
HEIGHTS_PX = (12, 16, 20, 24, 32, 48, 64)
GRID = TileGrid.of(8 * TILE_PX, 24 * TILE_PX)
GRID_PX = (GRID.height_px, GRID.width_px)
SHAPES = [code for code, scales in enumerate(REGION_SHAPES) if max(scales) <= 3]
GROUND, INK, ERROR = 200, 120, 60
"""Grey levels: the ground, how much darker the text is, and the reader's standard error."""
LEGIBLE = 0.95

Grey = npt.NDArray[np.uint8]
Boxes = list[tuple[int, int, int, int]]


def name_of(code: int) -> str:
    """Rows × columns of a shape in tiles, as "1x4"."""
    rows, cols = REGION_SHAPES[code]
    return f"{1 << rows}x{1 << cols}"


class Line:
    """A line of equally wide cells on the picture, one for each character; `boxes` (left, top, right, bottom)."""

    def __init__(self, rng: np.random.Generator, height_px: int) -> None:
        self._font = ImageFont.load_default(height_px)
        ink = [self._font.getbbox(character) for character in CHARACTERS]
        self._top, bottom = min(int(box[1]) for box in ink), max(int(box[3]) for box in ink)
        cell_px = max(int(box[2]) for box in ink) + 1
        left = int(rng.integers(0, TILE_PX))
        self.top_px = int(rng.integers(0, GRID.height_px - (bottom - self._top)))
        self.bottom_px = self.top_px + bottom - self._top
        count = (GRID.width_px - left) // cell_px
        self.boxes: Boxes = [
            (left + at * cell_px, self.top_px, left + (at + 1) * cell_px, self.bottom_px) for at in range(count)
        ]

    def draw(self, text: str) -> Grey:
        """The picture with `text`, a character in each cell."""
        image = Image.new("L", (GRID.width_px, GRID.height_px), GROUND)
        pen = ImageDraw.Draw(image)
        for character, (left, top, _, _) in zip(text, self.boxes, strict=True):
            pen.text((left, top - self._top), character, fill=GROUND - INK, font=self._font)
        return np.asarray(image)

    def regions(self, code: int) -> npt.NDArray[np.int64]:
        """The regions of one shape that touch the line."""
        down = TILE_PX << REGION_SHAPES[code][0]
        rows = range(self.top_px // down, -(-self.bottom_px // down))
        return np.array([(code, row, col) for row in rows for col in range(shape_grid(GRID.shape, code)[1])])


class Shown:
    """Pictures as regions show them, laid out again as rows and columns of texels."""

    def __init__(self) -> None:
        self._store: TextureStore = open_store(PlaneFormat.of(_planes(np.zeros(GRID_PX, np.uint8))), "cpu")
        self._frame = 0

    def through(self, picture: Grey, shapes: Sequence[npt.NDArray[np.int64]]) -> list[npt.NDArray[np.float32]]:
        """What regions show, each array of them of one shape and row by row: float32 [rows * 32, cols * 32] each."""
        self._frame += 1
        self._store.update(_planes(picture), FrameStamp(self._frame, 0, 0, self._frame))
        with self._store.lease() as view:
            return [_laid_out(view.gather(regions)[:, 0], len(np.unique(regions[:, 1]))) for regions in shapes]


def _laid_out(pixels: Grey, rows: int) -> npt.NDArray[np.float32]:
    tiles = pixels.astype(np.float32).reshape(rows, -1, TILE_PX, TILE_PX)
    return tiles.swapaxes(1, 2).reshape(rows * TILE_PX, -1)


def _planes(picture: Grey) -> FramePlanes:
    return FramePlanes("gray", (picture,))


def read_shares(shown: Shown, line: Line, rng: np.random.Generator) -> dict[int, float]:
    """The share of a line's characters that are told rightly through regions of each shape."""
    text = "".join(rng.choice(list(CHARACTERS), len(line.boxes)))
    regions = [line.regions(code) for code in SHAPES]
    seen = [one + rng.normal(0, ERROR, one.shape) for one in shown.through(line.draw(text), regions)]
    errors = np.empty((len(SHAPES), len(CHARACTERS), len(text)))
    for at, character in enumerate(CHARACTERS):
        expected = shown.through(line.draw(character * len(text)), regions)
        for index, code in enumerate(SHAPES):
            off = (seen[index] - expected[index]) ** 2
            errors[index, at] = _by_cell(off, line, code, int(regions[index][0, 1]))
    told = np.array(list(CHARACTERS))[errors.argmin(axis=1)]
    return dict(zip(SHAPES, (told == list(text)).mean(axis=1).tolist(), strict=True))


def _by_cell(off: npt.NDArray[np.float64], line: Line, code: int, first_row: int) -> list[float]:
    """Sums over the texels that show each cell; `off` begins at the shape's row `first_row`."""
    down, across = (1 << scale for scale in REGION_SHAPES[code])
    origin_px = first_row * down * TILE_PX
    rows = slice((line.top_px - origin_px) // down, -(-(line.bottom_px - origin_px) // down))
    return [float(off[rows, left // across : -(-right // across)].sum()) for left, _, right, _ in line.boxes]


def measure(lines: int) -> list[dict[str, Any]]:
    """A row for each height and shape: `read`, the share of characters told, and `tokens_per_640_px`."""
    rng, shown, rows = np.random.default_rng(0), Shown(), []
    for height_px in HEIGHTS_PX:
        drawn = [Line(rng, height_px) for _ in range(lines)]
        reads = [read_shares(shown, line, rng) for line in drawn]
        for code in SHAPES:
            tokens = [len(line.regions(code)) * 640 / GRID.width_px for line in drawn]
            rows.append(
                {
                    "text_px": height_px,
                    "shape": name_of(code),
                    "read": round(float(np.mean([read[code] for read in reads])), 3),
                    "tokens_per_640_px": round(float(np.mean(tokens)), 1),
                }
            )
    return rows


def cheapest(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any] | None]]:
    """For each height: the cheapest shape that tells 95 % of the characters, of squares and of all."""

    def least(some: list[dict[str, Any]]) -> dict[str, Any] | None:
        return min(some, key=lambda row: row["tokens_per_640_px"], default=None)

    found = {}
    for height_px in HEIGHTS_PX:
        legible = [row for row in rows if row["text_px"] == height_px and row["read"] >= LEGIBLE]
        squares = [row for row in legible if len(set(row["shape"].split("x"))) == 1]
        found[str(height_px)] = {"square": least(squares), "any": least(legible)}
    return found


def main() -> None:
    """Measures, prints a table, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--lines", type=int, default=8, help="lines of each height")
    parser.add_argument("--out", type=Path, default=RESULTS / "text_shapes.json")
    options = parser.parse_args()
    rows = measure(options.lines)
    print("text    " + "".join(f"{name_of(code):>12}" for code in SHAPES))
    for height_px in HEIGHTS_PX:
        cells = [row for row in rows if row["text_px"] == height_px]
        told = (f"{100 * row['read']:5.0f}% {row['tokens_per_640_px']:4.0f}t" for row in cells)
        print(f"{height_px:3} px  " + "".join(f"{cell:>12}" for cell in told))
    report = {"machine": machine(), "lines": options.lines, "rows": rows, "cheapest": cheapest(rows)}
    write_report(options.out, report)


if __name__ == "__main__":
    main()
