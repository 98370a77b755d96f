"""Faces, words and numbers of each split.

The files are those that come with matplotlib (DejaVu, STIX, Computer Modern); Pillow's own font and OpenCV's
join them. Training bends its faces (slant, width, weight) and redraws most of its texts with other strokes, to make
many out of few; test faces stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image as PillowImage
from PIL import ImageDraw, ImageFont

from arr_coc.errors import OptionError
from stream.scenes.textures import Face, Glyph, Mask, TextMask, opencv_face

Split = Literal["train", "test"]
T = TypeVar("T")

PILLOWS_OWN = "Aileron"
"""Font that `ImageFont.load_default` returns at any size."""

FAMILIES: dict[Split, dict[str, tuple[str, ...]]] = {
    "train": {
        "DejaVu Sans": ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"),
        "DejaVu Serif": ("DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf"),
        "DejaVu Sans Mono": ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"),
        "Computer Modern Roman": ("cmr10.ttf", "cmb10.ttf"),
        "Computer Modern Typewriter": ("cmtt10.ttf",),
        "Computer Modern Italic": ("cmti10.ttf",),
    },
    "test": {
        "STIX General": ("STIXGeneral.ttf", "STIXGeneralBol.ttf"),
        "Computer Modern Sans": ("cmss10.ttf",),
        "Aileron": (PILLOWS_OWN,),
    },
}
"""Split → family → font files; every font is as likely as the next."""

OPENCV_FONTS = (cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_COMPLEX, cv2.FONT_HERSHEY_TRIPLEX)
"""For training only."""

_OPENCV_SHARE = 0.2
_SLANTS = (0.0, 0.0, 0.0, -0.1, 0.12, 0.24)
_WIDTHS = (1.0, 1.0, 0.85, 1.15)
_WEIGHTS_PX = (0, 0, 0, 1)
_MEASURED_PX = 200


@dataclass(frozen=True, slots=True)
class Bend:
    """Distortion of a face: `slant` is the tangent of its lean to the right, `weight_px` what every stroke gains."""

    slant: float = 0.0
    width: float = 1.0
    weight_px: int = 0


def random_face(rng: np.random.Generator, split: Split) -> Face:
    """A face of the split's."""
    if split == "train" and rng.random() < _OPENCV_SHARE:
        return opencv_face(_one(rng, OPENCV_FONTS), _one(rng, (0.08, 0.12, 0.16)))
    files = tuple(file for family in FAMILIES[split].values() for file in family)
    file = _one(rng, files)
    if split == "test":
        return face(file)
    return face(file, Bend(_one(rng, _SLANTS), _one(rng, _WIDTHS), _one(rng, _WEIGHTS_PX)))


@functools.cache
def face(file: str, bend: Bend | None = None) -> Face:
    """A TrueType font as a face, bent if asked. Raises OptionError if matplotlib is not installed."""

    @functools.lru_cache(maxsize=4096)
    def glyph(character: str, height_px: int) -> Glyph:
        outline = _glyph(_font(file, round(height_px / _capitals_share(file))), character)
        return _bent(outline, bend) if bend else outline

    return glyph


def _glyph(font: ImageFont.FreeTypeFont, character: str) -> Glyph:
    left, top, right, bottom = (round(edge) for edge in font.getbbox(character, anchor="ls"))
    canvas = PillowImage.new("L", (right - left + 2, bottom - top + 2))
    ImageDraw.Draw(canvas).text((1 - left, 1 - top), character, fill=255, font=font, anchor="ls")
    mask, x, y = _cut(np.asarray(canvas, np.uint8))
    return Glyph(mask, left - 1 + x, top - 1 + y, font.getlength(character))


def _bent(glyph: Glyph, bend: Bend) -> Glyph:
    height, width = glyph.mask.shape
    reach_px = round(abs(bend.slant) * height) + 2
    bottom_px = glyph.top_px + height
    canvas_px = (round(width * bend.width) + 2 * reach_px, height + 2)
    moves = [[bend.width, -bend.slant, reach_px + bend.slant * height], [0.0, 1.0, 1.0]]
    mask = cv2.warpAffine(glyph.mask, np.array(moves), canvas_px, flags=cv2.INTER_LINEAR)
    if bend.weight_px:
        mask = cv2.dilate(mask, np.ones((2, 2), np.uint8))
    cut, x, y = _cut(np.asarray(mask, np.uint8))
    left_px = round(glyph.left_px * bend.width) - reach_px + x
    advance_px = glyph.advance_px * bend.width + bend.weight_px
    return Glyph(cut, left_px, bottom_px - height - 1 + y, advance_px)


def _cut(mask: Mask) -> tuple[Mask, int, int]:
    """The mask cut to its ink, and the origin of that: x, y."""
    x, y, width, height = cv2.boundingRect(mask)
    return mask[y : y + height, x : x + width].copy(), x, y


@functools.lru_cache(maxsize=512)
def _font(file: str, size_px: int) -> ImageFont.FreeTypeFont:
    if file == PILLOWS_OWN:
        font = ImageFont.load_default(size_px)
        assert isinstance(font, ImageFont.FreeTypeFont), "Pillow without FreeType"
        return font
    return ImageFont.truetype(_folder() / file, size_px, layout_engine=ImageFont.Layout.BASIC)


@functools.cache
def _capitals_share(file: str) -> float:
    """Height of an H as a share of the font's size."""
    _, top, _, _ = _font(file, _MEASURED_PX).getbbox("H", anchor="ls")
    return -top / _MEASURED_PX


@functools.cache
def _folder() -> Path:
    try:
        import matplotlib
    except ImportError as error:
        raise OptionError("scenes are lettered in matplotlib's fonts; pip install matplotlib") from error
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def _one(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


_MARGIN_PX = 3
_FINER = 2
_STROKE_SHARES = (0.0, 0.05)
_ROUNDING_SHARES = (0.01, 0.05)
_LEVELS = (0.38, 0.6)
_SWING_SHARES = (0.0, 0.06)
_INK_RATIOS = (0.6, 2.2)


def redrawn(rng: np.random.Generator, text: TextMask) -> TextMask:
    """The text as another face might have it: strokes thicker or thinner along one axis, corners rounded, lines swung.

    Boxes of the characters are moved along, and stay as large as they were. Unchanged if too little or too much ink
    would be left.
    """
    height = text.size_px[1]
    padded = cv2.copyMakeBorder(text.mask, *(_MARGIN_PX,) * 4, cv2.BORDER_CONSTANT)
    fine = cv2.resize(padded, None, fx=_FINER, fy=_FINER, interpolation=cv2.INTER_LINEAR)
    unit_px = _FINER * height
    wide, high = (1 + round(float(rng.uniform(*_STROKE_SHARES)) * unit_px) for _ in range(2))
    pen = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (wide, high))
    fine = cv2.erode(fine, pen) if rng.random() < 0.35 else cv2.dilate(fine, pen)
    sigma = float(rng.uniform(*_ROUNDING_SHARES)) * unit_px
    soft = cv2.GaussianBlur(fine.astype(np.float32) / 255, (0, 0), max(0.3, sigma))
    soft = _swung(rng, soft, float(rng.uniform(*_SWING_SHARES)) * unit_px)
    sharp = np.clip((soft - float(rng.uniform(*_LEVELS))) * (1.5 * max(1.0, sigma)) + 0.5, 0, 1)
    mask = cv2.resize((255 * sharp).astype(np.uint8), padded.shape[::-1], interpolation=cv2.INTER_AREA)
    ratio = float(mask.sum(dtype=np.int64)) / max(1.0, float(text.mask.sum(dtype=np.int64)))
    if not _INK_RATIOS[0] <= ratio <= _INK_RATIOS[1]:
        return text
    cut, x, y = _cut(np.asarray(mask, np.uint8))
    dx, dy = _MARGIN_PX - x, _MARGIN_PX - y
    return TextMask(cut, tuple((left + dx, top + dy, right + dx, low + dy) for left, top, right, low in text.boxes))


def _swung(rng: np.random.Generator, ink: npt.NDArray[np.float32], most_px: float) -> npt.NDArray[np.float32]:
    """Every pixel moved by up to `most_px`, smoothly over the picture."""
    rows, cols = ink.shape
    coarse = rng.uniform(-most_px, most_px, (3, 2 + 2 * cols // rows, 2)).astype(np.float32)
    moves = cv2.resize(coarse, (cols, rows), interpolation=cv2.INTER_CUBIC)
    x, y = np.meshgrid(np.arange(cols, dtype=np.float32), np.arange(rows, dtype=np.float32))
    return np.asarray(cv2.remap(ink, x + moves[..., 0], y + moves[..., 1], cv2.INTER_LINEAR), np.float32)


_TRAIN = """
ACE AIR ALARM ALLEY ANGEL ANT APPLE ARCH ARENA ARM ATLAS ATOM AXE BAG BAKER BALL BAND BANK BAR BASIN BAY BEACH
BEAR BED BELL BELT BENCH BIKE BIRD BLADE BLOCK BOARD BOAT BOLT BONE BOOK BOX BRAKE BRICK BUS CAB CABLE CAMP
CANAL CARD CAVE CHAIN CHIEF CIVIC CLAY CLIFF CLOCK CLOUD COAT COIN COLD COPY CORN CRANE CREW CROWN CUBE CURVE
DAM DANCE DARK DATE DAWN DEPOT DIAL DISH DOCK DOG DOME DOOR DOWN DRUM DUCK DUST EARLY EAST EDGE EGG ELBOW EVEN
EYE FACE FARM FERRY FIELD FILM FIN FIRE FISH FLAG FLOOR FLOUR FOG FORK FOX FRAME FUEL GAME GAS GEAR GIANT GLASS
GLOBE GO GOAT GOLD GRAIN GUARD GULF HALL HAND HAT HAWK HEAT HERO HILL HOOK HORN HOTEL HOUR ICE INCH INK IRON IVY
JAR JAZZ JET JOB JUDGE JUICE KEY KING KITE KNOT LAB LAKE LAMP LANE LASER LEAF LEMON LIFT LIME LINEN LION LOCK
LOG LUNCH MAP MARCH MASK MEAL METAL MILE MILL MINT MIX MONEY MOTOR MUD NAIL NECK NEST NET NIGHT NO NORTH NOSE
OAK OCEAN OIL ONION OPERA OVEN OWL PAGE PAINT PALM PAN PARK PATH PEAK PEN PIANO PIER PIPE PIT PLUG POLE POND
PORT POST PUB PUMP QUAY QUEEN QUIZ RADAR RAIN RAMP RAT RIVER ROAD ROBOT ROCK ROPE ROSE RUG SAND SEA SEED SHIP
SHOE SILK SKI SNOW SOAP SOUP STAGE STEEL SUN SWAN TAXI TEA TENT TIDE TOY TRAM TUNA TURBO TWIN UP URBAN VAN VASE
VIEW VOTE WALL WAX WEST WHEEL WIND WOLF WOOD YARD YEAR YOGA ZEBRA ZERO
"""

_TEST = """
ADD AGE ALBUM ANKLE ASH BADGE BAKE BEAN BERRY BIN BOOT BOWL BRIDE BRUSH CAKE CAR CHESS CITY CLUB COACH CUP DEER
DESK DINER DRAFT EAGLE EAR ECHO EXIT EXTRA FAN FENCE FEW FINAL FIVE FLUTE FOOD FROST FRUIT GATE GIFT GRASS GRID
GYM HELP HIVE HOME HONEY HUT IDEA INDEX ISLE JACK JELLY JOKER JUMP KAYAK KEEP KIOSK LADY LAW LEVEL LIGHT LOAN
LUCKY MAIN MAYOR MENU MILK MOON MOUTH MUSIC NAVY NEW NINE NOON NURSE OBOE OFFER OPEN ORBIT OX PAWN PEACH PIG
PILOT PIZZA PLAZA POOL PRESS PULL PUSH QUART QUICK QUILT RACE REX RING ROOF ROYAL SALE SALT SHOP SIX SLOW SOUTH
SPA STOP TABLE TAPE TAX TEN TIGER TO TOWER TRAIN TUBE UNCLE UNIT VALVE VENUS VET VILLA WAGON WAIT WATER WAVE WE
WHALE WINE WORLD YES YOUTH ZINC ZONE ZOO
"""

LONGEST = 5
WORDS: dict[Split, tuple[str, ...]] = {
    "train": tuple(_TRAIN.split()),
    "test": tuple(_TEST.split()),
}

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MADE_UP_SHARE = 0.55
"""Of training words: letters at random, so that letters are read and not words guessed."""

_TEST_REMAINDER = 3
_MODULUS = 7


def random_word(rng: np.random.Generator, split: Split) -> str:
    """Two to five capitals. Those of training are often no words at all; none of them is a test word."""
    words = WORDS[split]
    if split == "test" or rng.random() >= _MADE_UP_SHARE:
        return words[int(rng.integers(len(words)))]
    while True:
        word = "".join(_LETTERS[i] for i in rng.integers(len(_LETTERS), size=int(rng.integers(2, LONGEST + 1))))
        if word not in WORDS["test"]:
            return word


def random_number(rng: np.random.Generator, split: Split) -> str:
    """One to three digits. Of the larger numbers test has those that leave 3 when divided by 7, training the others."""
    digits = int(rng.integers(1, 4))
    if digits == 1:
        return str(int(rng.integers(10)))
    while True:
        number = int(rng.integers(10 ** (digits - 1), 10**digits))
        if (number % _MODULUS == _TEST_REMAINDER) == (split == "test"):
            return str(number)
