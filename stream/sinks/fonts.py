"""Fonts for text that is drawn: Pillow's own, and behind it those of this machine for the scripts that it lacks.

Pillow's default font knows little beyond ASCII. A character that it lacks is looked for in the fonts that are
installed; where none has it, an accented letter is drawn without its accent, and anything else as the empty box that
fonts have for what they lack, which is said once.
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
"""Beginnings of the names of fonts that are plain to read; other ones are tried after them."""

ODD = ("bold", "italic", "oblique", "mono", "condensed", "light", "serif", "thin", "black")

PLAIN = str.maketrans({"–": "-", "—": "-", "×": "x", "…": "...", "’": "'", "‘": "'", "→": ">", "•": "·"})
"""Signs that have a plain counterpart."""

log = logging.getLogger(__name__)


class TextRenderer:
    """Text in one height, each character in the first font that has it."""

    def __init__(self, height_px: int, files: tuple[Path, ...] | None = None) -> None:
        """`files` are the fonts behind Pillow's own; those of this machine where None."""
        self.height_px = height_px
        self._files = files
        self._unopened: Iterator[Path] | None = None
        self._fonts: list[Font] = [ImageFont.load_default(height_px)]
        self._found: dict[str, tuple[Font, str] | None] = {}

    def width_px(self, text: str) -> float:
        """Width of the drawn text."""
        return sum(font.getlength(run) for font, run in self._runs(text))

    def draw(self, pen: ImageDraw.ImageDraw, x_px: float, baseline_px: float, text: str, colour: str) -> None:
        """Draws a line of text whose baseline begins there."""
        for font, run in self._runs(text):
            pen.text((x_px, baseline_px), run, font=font, fill=colour, anchor="ls")
            x_px += font.getlength(run)

    def wrapped(self, text: str, width_px: float, most: int) -> list[str]:
        """The words in at most so many lines, none wider than `width_px`.

        A word that is wider alone is broken; what does not fit ends in an ellipsis.
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
        """The text in pieces of one font each; marks stay with their letter."""
        run_font, run = self._fonts[0], ""
        for character in text:
            font, drawn = run_font, character
            if not run or unicodedata.category(character) not in ("Mn", "Me", "Cf"):
                # the font of a character, and what is drawn for it
                if character not in self._found:
                    self._found[character] = self._look_for(character)
                found = self._found[character]
                font, drawn = (self._fonts[0], character) if found is None else found
            if run and font is not run_font:
                yield run_font, run
                run = ""
            run_font, run = font, run + drawn
        if run:
            yield run_font, run

    def _look_for(self, character: str) -> tuple[Font, str] | None:
        for font in self._all():
            if has(font, character):
                return font, character
        plain = unicodedata.normalize("NFKD", character)[0].translate(PLAIN)
        if all(has(self._fonts[0], letter) for letter in plain):
            return self._fonts[0], plain
        _say_missing(unicodedata.name(character, "unknown").split()[0])
        return None

    def _all(self) -> Iterator[Font]:
        """Pillow's own and those that were opened, then the others of this machine, each opened once."""
        yield from tuple(self._fonts)
        if self._unopened is None:
            self._unopened = iter(font_files() if self._files is None else self._files)
        for path in self._unopened:
            font = opened(path, self.height_px)
            if font is not None:
                self._fonts.append(font)
                yield font


def has(font: Font, character: str) -> bool:
    """True where a font has a character: it draws something else than for one that no font has."""
    if character.isspace():
        return True
    # no font has it: what is drawn for it is what a font draws for all that it lacks
    drawn, lacking = font.getmask(character), font.getmask("\uffff")
    return (drawn.size, bytes(drawn)) != (lacking.size, bytes(lacking))


@cache
def font_files() -> tuple[Path, ...]:
    """The font files of this machine, plain ones first; with matplotlib's, where that is installed."""
    folders = [Path(name).expanduser() for name in FOLDERS.get(sys.platform, FOLDERS["linux"])]
    matplotlib = find_spec("matplotlib")
    if matplotlib is not None and matplotlib.origin is not None:
        folders.append(Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf")
    found = {path for folder in folders for path in files_in(folder)}
    return tuple(sorted(found, key=_rank)[:400])  # fonts that are tried at most


def files_in(folder: Path) -> Iterator[Path]:
    """The font files in a folder, however deep; none where it cannot be read."""
    try:
        for path in folder.rglob("*"):
            # in the name of fonts that have a box for every character there is
            if path.suffix.lower() in SUFFIXES and "lastresort" not in path.name.lower():
                yield path
    except OSError:
        return


def opened(path: Path, height_px: int) -> ImageFont.FreeTypeFont | None:
    """The font in a file at a height; None where it has no such height, as those of coloured emoji, or is damaged."""
    try:
        return ImageFont.truetype(str(path), height_px)
    except (OSError, ValueError):
        return None


def _rank(path: Path) -> tuple[int, bool, str]:
    name = path.stem.lower().replace("-", "").replace("_", "")
    first = next((place for place, start in enumerate(PREFERRED) if name.startswith(start)), len(PREFERRED))
    return first, any(word in name for word in ODD), str(path)


@cache
def _say_missing(script: str) -> None:
    """Says once for each script that it cannot be drawn."""
    log.warning(
        "no font here has %s characters: the heat map shows empty boxes for them; install one that has, such as the "
        "packages fonts-noto and fonts-noto-cjk",
        script,
    )
