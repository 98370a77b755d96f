"""Legibility of a line of text by the shape of the regions that show it, and the tokens that it takes.

    python -m benchmarks.text_shapes [--lines N] [--out FILE]

Lines of random letters and digits lie anywhere on the tiles of a picture. A reader knows the place of each
character, and takes the nearest of the pictures of all 62, shown through the same regions; it misreads every texel by
an error whose standard deviation is half of the text's contrast. So only what regions leave of a character decides, and
equally for every shape. Tokens: regions of one shape that touch the line, for each 640 pixels of its length.

`covers` lets the reader read frames with several lines through whole allocations, whose relevance is that of a scorer
that knows the lines, with squares alone and with wide regions at equal tokens. `gather` is the least time
that the CPU and the OpenGL store take for the pixels of 256 regions of one shape at 1080p.
"""

from __future__ import annotations

import argparse
import statistics
import string
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont

from arr_coc.allocation.attending import allocate_frame
from arr_coc.allocation.strategies import AllocationHistory, AllocationRequest
from arr_coc.allocation.text_lines import line_strength, line_tiles
from arr_coc.backends.registry import open_store
from arr_coc.errors import BackendMissing
from arr_coc.texture.regions import first_tiles, region_sides, shape_grid
from arr_coc.texture.store.base import TextureStore
from arr_coc.texture.store.planes import PlaneFormat
from arr_coc.types import REGION_SHAPES, TILE_PX, FramePlanes, FrameStamp, TileGrid
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine

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
        image = Image.new("L", (GRID.width_px, max(GRID.height_px, self.bottom_px)), GROUND)
        pen = ImageDraw.Draw(image)
        for character, (left, top, _, _) in zip(text, self.boxes, strict=True):
            pen.text((left, top - self._top), character, fill=GROUND - INK, font=self._font)
        return np.asarray(image)

    def move(self, down_px: int) -> None:
        """Move the line down by `down_px` pixels."""
        self.top_px, self.bottom_px = self.top_px + down_px, self.bottom_px + down_px
        self.boxes = [(left, top + down_px, right, bottom + down_px) for left, top, right, bottom in self.boxes]

    def regions(self, code: int) -> npt.NDArray[np.int64]:
        """The regions of one shape that touch the line."""
        down = TILE_PX << REGION_SHAPES[code][0]
        rows = range(self.top_px // down, -(-self.bottom_px // down))
        return np.array([(code, row, col) for row in rows for col in range(shape_grid(GRID.shape, code)[1])])


class RegionRenderer:
    """Pictures as regions show them, laid out again as rows and columns of texels."""

    def __init__(self) -> None:
        self._store: TextureStore = open_store(PlaneFormat.of(_planes(np.zeros(GRID_PX, np.uint8))), "cpu")
        self._frame = 0

    def through(self, picture: Grey, shapes: Sequence[npt.NDArray[np.int64]]) -> list[npt.NDArray[np.float32]]:
        """Picture of regions, each array of them of one shape and row by row: float32 [rows * 32, cols * 32] each."""
        self._frame += 1
        self._store.update(_planes(picture), FrameStamp(self._frame, 0, 0, self._frame))
        with self._store.lease() as view:
            return [_laid_out(view.gather(regions)[:, 0], len(np.unique(regions[:, 1]))) for regions in shapes]


def _laid_out(pixels: Grey, rows: int) -> npt.NDArray[np.float32]:
    tiles = pixels.astype(np.float32).reshape(rows, -1, TILE_PX, TILE_PX)
    return tiles.swapaxes(1, 2).reshape(rows * TILE_PX, -1)


def _planes(picture: Grey) -> FramePlanes:
    return FramePlanes("gray", (picture,))


def read_shares(screen: RegionRenderer, line: Line, rng: np.random.Generator) -> dict[int, float]:
    """The share of a line's characters that are read rightly through regions of each shape."""
    text = "".join(rng.choice(list(CHARACTERS), len(line.boxes)))
    regions = [line.regions(code) for code in SHAPES]
    observations = [pixels + rng.normal(0, ERROR, pixels.shape) for pixels in screen.through(line.draw(text), regions)]
    errors = np.empty((len(SHAPES), len(CHARACTERS), len(text)))
    for at, character in enumerate(CHARACTERS):
        expected = screen.through(line.draw(character * len(text)), regions)
        for index, code in enumerate(SHAPES):
            off = (observations[index] - expected[index]) ** 2
            errors[index, at] = _by_cell(off, line, code, int(regions[index][0, 1]))
    best = np.array(list(CHARACTERS))[errors.argmin(axis=1)]
    return dict(zip(SHAPES, (best == list(text)).mean(axis=1).tolist(), strict=True))


def _by_cell(off: npt.NDArray[np.float64], line: Line, code: int, first_row: int) -> list[float]:
    """Sums over the texels that show each cell; `off` begins at the shape's row `first_row`."""
    down, across = (1 << scale for scale in REGION_SHAPES[code])
    origin_px = first_row * down * TILE_PX
    rows = slice((line.top_px - origin_px) // down, -(-(line.bottom_px - origin_px) // down))
    return [float(off[rows, left // across : -(-right // across)].sum()) for left, _, right, _ in line.boxes]


def measure(lines: int) -> list[dict[str, Any]]:
    """A row for each height and shape: `read`, the share of characters read, and `tokens_per_640_px`."""
    rng, screen, rows = np.random.default_rng(0), RegionRenderer(), []
    for height_px in HEIGHTS_PX:
        text_lines = [Line(rng, height_px) for _ in range(lines)]
        line_shares = [read_shares(screen, line, rng) for line in text_lines]
        for code in SHAPES:
            tokens = [len(line.regions(code)) * 640 / GRID.width_px for line in text_lines]
            rows.append(
                {
                    "text_px": height_px,
                    "shape": name_of(code),
                    "read": round(float(np.mean([shares[code] for shares in line_shares])), 3),
                    "tokens_per_640_px": round(float(np.mean(tokens)), 1),
                }
            )
    return rows


def cheapest(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any] | None]]:
    """For each height: the cheapest shape that shows 95 % of the characters, of squares and of all."""

    def least(some: list[dict[str, Any]]) -> dict[str, Any] | None:
        return min(some, key=lambda row: row["tokens_per_640_px"], default=None)

    result = {}
    for height_px in HEIGHTS_PX:
        legible = [row for row in rows if row["text_px"] == height_px and row["read"] >= LEGIBLE]
        squares = [row for row in legible if len(set(row["shape"].split("x"))) == 1]
        result[str(height_px)] = {"square": least(squares), "any": least(legible)}
    return result


FRAME = TileGrid.of(22 * TILE_PX, 40 * TILE_PX)
LINE_HEIGHTS_PX = (16, 20, 24, 32, 48)
BUDGETS = (0.05, 0.1, 0.2, 0.27)
SLOT_PX = FRAME.height_px // len(LINE_HEIGHTS_PX)


class LinedFrame:
    """A frame with a line of each height, at random places in slots one below the other."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.lines = []
        for slot, height_px in enumerate(rng.permutation(LINE_HEIGHTS_PX).tolist()):
            line = Line(rng, height_px)
            offset_px = slot * SLOT_PX + int(rng.integers(0, SLOT_PX - (line.bottom_px - line.top_px))) - line.top_px
            line.move(offset_px)
            self.lines.append(line)

    def draw(self, texts: Sequence[str]) -> Grey:
        """The picture with a text in each line."""
        picture = np.full((FRAME.height_px, FRAME.width_px), GROUND, np.uint8)
        for line, text in zip(self.lines, texts, strict=True):
            image = line.draw(text)
            picture[line.top_px : line.bottom_px, : image.shape[1]] = image[line.top_px : line.bottom_px]
        return picture

    def relevance(self) -> npt.NDArray[np.float32]:
        """The relevance of a scorer that knows the lines: 0.9 there, 0.1 elsewhere."""
        relevance = np.full(FRAME.shape, 0.1, np.float32)
        for line in self.lines:
            right = line.boxes[-1][2]
            relevance[line.top_px // TILE_PX : -(-line.bottom_px // TILE_PX), : -(-right // TILE_PX)] = 0.9
        return relevance


def read_covers(frames: int) -> list[dict[str, Any]]:
    """A row for each strategy and budget: `read`, the share of characters read, with squares and with wide regions."""
    rng = np.random.default_rng(1)
    line_frames = [LinedFrame(rng) for _ in range(frames)]
    shares: dict[tuple[str, float, bool], list[float]] = {}
    for frame in line_frames:
        for key, share in _read_frame(frame, rng).items():
            shares.setdefault(key, []).append(share)
    return [
        {
            "strategy": strategy,
            "budget": budget,
            "squares": round(float(np.mean(shares[strategy, budget, False])), 3),
            "wide": round(float(np.mean(shares[strategy, budget, True])), 3),
        }
        for strategy in ("foveated", "mixed")
        for budget in BUDGETS
    ]


def _read_frame(frame: LinedFrame, rng: np.random.Generator) -> dict[tuple[str, float, bool], float]:
    texts = ["".join(rng.choice(list(CHARACTERS), len(line.boxes))) for line in frame.lines]
    store = open_store(PlaneFormat.of(_planes(frame.draw(texts))), "cpu")
    covers: dict[tuple[str, float, bool], npt.NDArray[np.int64]] = {}
    observations: dict[tuple[str, float, bool], npt.NDArray[np.float32]] = {}
    errors: dict[tuple[str, float, bool], list[list[float]]] = {}
    for at, picture in enumerate(
        [frame.draw(texts), *(frame.draw([character * len(t) for t in texts]) for character in CHARACTERS)]
    ):
        store.update(_planes(picture), FrameStamp(at, 0, 0, at + 1))
        with store.lease() as view:
            if not at:
                covers = _covers(frame.relevance(), line_tiles(line_strength(view), None))
                observations = {key: view.gather(regions)[:, 0].astype(np.float32) for key, regions in covers.items()}
                observations = {
                    key: pixels + rng.normal(0, ERROR, pixels.shape).astype(np.float32)
                    for key, pixels in observations.items()
                }
                continue
            for key, regions in covers.items():
                off = (observations[key] - view.gather(regions)[:, 0].astype(np.float32)) ** 2
                errors.setdefault(key, []).append(_by_character(frame, regions, off))
    expected = list("".join(texts))
    letters = np.array(list(CHARACTERS))
    return {key: float((letters[np.argmin(rows, axis=0)] == expected).mean()) for key, rows in errors.items()}


def _covers(
    relevance: npt.NDArray[np.float32], lines: npt.NDArray[np.bool_]
) -> dict[tuple[str, float, bool], npt.NDArray[np.int64]]:
    covers = {}
    for strategy in ("foveated", "mixed"):
        for budget in BUDGETS:
            for wide in (False, True):
                tokens = round(budget * FRAME.tiles)
                request = AllocationRequest(
                    torch.from_numpy(relevance), tokens, 0.25, 0, AllocationHistory(), lines=lines if wide else None
                )
                covers[strategy, budget, wide] = allocate_frame(request, strategy).regions.numpy()
    return covers


def _by_character(frame: LinedFrame, regions: npt.NDArray[np.int64], off: npt.NDArray[np.float32]) -> list[float]:
    """Errors [K, 32, 32] of texels, summed over each character's cell; what is not shown adds nothing."""
    spread = np.zeros((FRAME.height_px, FRAME.width_px), np.float32)
    for (top, left), (down, across), texels in zip(
        first_tiles(regions) * TILE_PX, region_sides(regions), off, strict=True
    ):
        part = texels.repeat(down, axis=0).repeat(across, axis=1) / (down * across)
        place = spread[top : top + part.shape[0], left : left + part.shape[1]]
        place[:] = part[: place.shape[0], : place.shape[1]]
    return [
        float(spread[top:bottom, left:right].sum()) for line in frame.lines for left, top, right, bottom in line.boxes
    ]


def gather_times(repeats: int = 20) -> list[dict[str, Any]]:
    """A row for each store and shape: the least milliseconds for 256 regions at 1080p."""
    rng, rows = np.random.default_rng(2), []
    planes = FramePlanes("rgb", (rng.integers(0, 256, (1080, 1920, 3), dtype=np.uint8),))
    for backend in ("cpu", "gl"):
        try:
            store = open_store(PlaneFormat.of(planes), backend)  # type: ignore[arg-type]
        except BackendMissing:
            continue
        store.update(planes, FrameStamp(0, 0, 0))
        with store.lease() as view:
            for code in SHAPES:
                high, wide = shape_grid(view.grid.shape, code)
                regions = np.stack([np.full(256, code), rng.integers(0, high, 256), rng.integers(0, wide, 256)], axis=1)
                times_ms = []
                for _ in range(repeats):
                    started_s = time.perf_counter()
                    view.gather(regions)
                    times_ms.append((time.perf_counter() - started_s) * 1e3)
                rows.append(
                    {"store": backend, "shape": name_of(code), "median_ms": round(statistics.median(times_ms), 2)}
                )
        store.close()
    return rows


def main() -> None:
    """Measure, print a table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--lines", type=int, default=8, help="lines of each height")
    parser.add_argument("--out", type=Path, default=RESULTS / "text_shapes.json")
    options = parser.parse_args()
    rows = measure(options.lines)
    print("text    " + "".join(f"{name_of(code):>12}" for code in SHAPES))
    for height_px in HEIGHTS_PX:
        cells = [row for row in rows if row["text_px"] == height_px]
        columns = (f"{100 * row['read']:5.0f}% {row['tokens_per_640_px']:4.0f}t" for row in cells)
        print(f"{height_px:3} px  " + "".join(f"{cell:>12}" for cell in columns))
    covers, gather = read_covers(options.lines), gather_times()
    for row in covers:
        shares = f"{row['squares']:4.0%} read in squares, {row['wide']:4.0%} with wide regions"
        print(f"{row['strategy']:9} {row['budget']:4.0%} of the tokens: {shares}")
    for row in gather:
        print(f"{row['store']:4} {row['shape']}: {row['median_ms']:.2f} ms for 256 regions")
    report = {"machine": machine(), "lines": options.lines, "rows": rows, "cheapest": cheapest(rows), "covers": covers}
    report["gather"] = gather
    write_report(options.out, report)


if __name__ == "__main__":
    main()
