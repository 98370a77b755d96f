"""Fonts for drawn text: Pillow's default font, with this machine's fonts as fallback for other scripts.

Pillow's default font has little beyond ASCII. Other characters are looked up in the installed fonts. If no font has a
character, an accented letter is drawn without its accent and anything else as the font's empty box, which is logged
once per script.
"""

from __future__ import annotations

import logging
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from PIL import ImageDraw, ImageFont

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont

FOLDERS = {
    "linux": ("~/.local/share/fonts", "~/.fonts", "/usr/local/share/fonts", "/usr/share/fonts"),
    "darwin": ("~/Library/Fonts", "/Library/Fonts", "/System/Library/Fonts"),
    "win32": ("~/AppData/Local/Microsoft/Windows/Fonts", "C:/Windows/Fonts"),
}
"""Folders in which systems keep their fonts, by `sys.platform`."""

SUFFIXES = {".ttf", ".otf", ".ttc", ".otc"}

PREFERRED = ("dejavusans", "notosans", "wqy", "arialunicode", "pingfang", "msyh", "yugoth", "malgun", "segoeui")
"""Prefixes of the names of plain, readable fonts; other fonts are tried after them."""

ODD = ("bold", "italic", "oblique", "mono", "condensed", "light", "serif", "thin", "black")

PLAIN = str.maketrans({"–": "-", "—": "-", "×": "x", "…": "...", "’": "'", "‘": "'", "→": ">", "•": "·"})
"""ASCII replacements of punctuation."""

log = logging.getLogger(__name__)


class TextRenderer:
    """Renderer of text in one height, each character in the first font that has it."""

    def __init__(self, height_px: int, files: tuple[Path, ...] | None = None) -> None:
        """`files` are the fallback fonts after Pillow's default; None: this machine's."""
        self.height_px = height_px
        self._files = files
        self._font_paths: Iterator[Path] | None = None
        self._fonts: list[Font] = [ImageFont.load_default(height_px)]
        self._glyphs: dict[str, tuple[Font, str] | None] = {}

    def width_px(self, text: str) -> float:
        """Return the width of the drawn text."""
        return sum(font.getlength(run) for font, run in self._runs(text))

    def draw(self, pen: ImageDraw.ImageDraw, x_px: float, baseline_px: float, text: str, colour: str) -> None:
        """Draw a line of text.

        Args:
            pen: Pillow's drawing context of the picture.
            x_px: Left end of the baseline.
            baseline_px: Height of the baseline, from the top.
            text: The line.
            colour: Any colour that Pillow accepts, such as "#a8b0c0".
        """
        for font, run in self._runs(text):
            pen.text((x_px, baseline_px), run, font=font, fill=colour, anchor="ls")
            x_px += font.getlength(run)

    def wrapped(self, text: str, width_px: float, most: int) -> list[str]:
        """Return the words in at most `most` lines, none wider than `width_px`.

        A wider word is broken; text that does not fit ends in an ellipsis.
        """
        lines = self._lines(text, width_px, most + 1)
        if len(lines) <= most:
            return lines
        last = lines[most - 1]
        while last and self.width_px(f"{last}…") > width_px:
            last = last[:-1].rstrip()
        return [*lines[: most - 1], f"{last}…"]

    def _lines(self, text: str, width_px: float, most: int) -> list[str]:
        lines: list[str] = []
        for word in text.split():
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self.width_px(longer) <= width_px:
                lines[-1] = longer
                continue
            lines.append("")
            for character in word:
                if lines[-1] and self.width_px(lines[-1] + character) > width_px:
                    lines.append("")
                if len(lines) > most:
                    return lines[:most]
                lines[-1] += character
        return lines[:most]

    def _runs(self, text: str) -> Iterator[tuple[Font, str]]:
        """Yield the text in runs of one font each; combining marks stay with their letter."""
        run_font = self._fonts[0]
        run = ""
        for character in text:
            font = run_font
            symbol = character
            if not run or unicodedata.category(character) not in ("Mn", "Me", "Cf"):
                # the font of a character, and what is drawn for it
                if character not in self._glyphs:
                    self._glyphs[character] = self._look_for(character)
                glyph = self._glyphs[character]
                font, symbol = (self._fonts[0], character) if glyph is None else glyph
            if run and font is not run_font:
                yield run_font, run
                run = ""
            run_font = font
            run = run + symbol
        if run:
            yield run_font, run

    def _look_for(self, character: str) -> tuple[Font, str] | None:
        for font in self._all():
            if has(font, character):
                return font, character
        plain = unicodedata.normalize("NFKD", character)[0].translate(PLAIN)
        if all(has(self._fonts[0], letter) for letter in plain):
            return self._fonts[0], plain
        _log_missing(unicodedata.name(character, "unknown").split()[0])
        return None

    def _all(self) -> Iterator[Font]:
        """Yield the fonts that are open, then the fallback fonts, each opened once."""
        yield from tuple(self._fonts)
        if self._font_paths is None:
            self._font_paths = iter(font_files() if self._files is None else self._files)
        for path in self._font_paths:
            font = opened(path, self.height_px)
            if font is not None:
                self._fonts.append(font)
                yield font


def has(font: Font, character: str) -> bool:
    """Return True if a font has a character: it draws something other than its box for missing characters."""
    if character.isspace():
        return True
    # no font has U+FFFF, so it is drawn as the box for missing characters
    mask = font.getmask(character)
    missing_mask = font.getmask("\uffff")
    return (mask.size, bytes(mask)) != (missing_mask.size, bytes(missing_mask))


@cache
def font_files() -> tuple[Path, ...]:
    """Return the font files of this machine, plain ones first; with matplotlib's fonts if it is installed."""
    folders = [Path(name).expanduser() for name in FOLDERS.get(sys.platform, FOLDERS["linux"])]
    matplotlib = find_spec("matplotlib")
    if matplotlib is not None and matplotlib.origin is not None:
        folders.append(Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf")
    files = {path for folder in folders for path in files_in(folder)}
    return tuple(sorted(files, key=_rank)[:400])  # limit of the fonts that are tried


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the font files in a folder and its subfolders; none if it cannot be read."""
    try:
        for path in folder.rglob("*"):
            # "last resort" fonts have a box for every character
            if path.suffix.lower() in SUFFIXES and "lastresort" not in path.name.lower():
                yield path
    except OSError:
        return


def opened(path: Path, height_px: int) -> ImageFont.FreeTypeFont | None:
    """Return the font in a file at a height; None if it lacks that height, like coloured emoji, or is damaged."""
    try:
        return ImageFont.truetype(str(path), height_px)
    except (OSError, ValueError):
        return None


def _rank(path: Path) -> tuple[int, bool, str]:
    name = path.stem.lower().replace("-", "").replace("_", "")
    first = next((place for place, start in enumerate(PREFERRED) if name.startswith(start)), len(PREFERRED))
    return first, any(word in name for word in ODD), str(path)


@cache
def _log_missing(script: str) -> None:
    """Log once per script that it cannot be drawn."""
    log.warning(
        "no font here has %s characters: drawn text has empty boxes for them; install one that has, such as the "
        "packages fonts-noto and fonts-noto-cjk",
        script,
    )
