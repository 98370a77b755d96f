"""Every kind of picture becomes the same array, and what is none is named in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arr_coc.errors import NonFiniteError, ShapeError
from arr_coc.texture.pictures import to_rgb

RGB = np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8)
ALPHA = np.full((6, 9, 1), 128, np.uint8)
GREY = RGB[..., 0]
GREY_RGB = np.repeat(GREY[..., None], 3, axis=2)
UNIT = RGB.astype(np.float64) / 255

SAME: dict[str, Any] = {
    "uint8": RGB,
    "alpha": np.concatenate([RGB, ALPHA], axis=2),
    "channels first": RGB.transpose(2, 0, 1),
    "alpha first": np.concatenate([RGB, ALPHA], axis=2).transpose(2, 0, 1),
    "strided": np.ascontiguousarray(RGB[:, ::-1])[:, ::-1],
    "16 bits": RGB.astype(np.uint16) * 257,
    "int64": RGB.astype(np.int64),
    "int16": RGB.astype(np.int16),
    "uint32": RGB.astype(np.uint32),
    "float64": UNIT,
    "float32": UNIT.astype(np.float32),
    "float16": UNIT.astype(np.float16),
    "tensor": torch.from_numpy(RGB),
    "tensor first": torch.from_numpy(RGB).permute(2, 0, 1),
    "tensor float": torch.from_numpy(UNIT).permute(2, 0, 1),
    "tensor int64": torch.from_numpy(RGB).long(),
    "tensor with gradient": torch.from_numpy(UNIT).requires_grad_(),
    "Pillow": Image.fromarray(RGB),
    "Pillow alpha": Image.fromarray(np.concatenate([RGB, ALPHA], axis=2)),
}

GREYS: dict[str, Any] = {
    "plane": GREY,
    "one channel": GREY[..., None],
    "one channel first": GREY[None],
    "16 bits": GREY.astype(np.uint16) * 257,
    "floats": GREY.astype(np.float32) / 255,
    "tensor": torch.from_numpy(GREY.copy()),
    "Pillow": Image.fromarray(GREY),
    "Pillow 16 bits": Image.fromarray(GREY.astype(np.uint16) * 257),
    "Pillow 32 bits": Image.fromarray(GREY.astype(np.int32) * 257),
    "Pillow floats": Image.fromarray(GREY.astype(np.float32) / 255),
    "Pillow alpha": Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA[..., 0])]),
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same_picture_in_every_form(kind: str) -> None:
    rgb = to_rgb(SAME[kind])
    assert rgb.dtype == np.uint8
    assert rgb.flags.c_contiguous
    np.testing.assert_array_equal(rgb, RGB)


@pytest.mark.parametrize("kind", GREYS)
def test_the_same_grey_picture_in_every_form(kind: str) -> None:
    np.testing.assert_array_equal(to_rgb(GREYS[kind]), GREY_RGB)


def test_a_picture_that_needs_no_change_is_not_copied() -> None:
    assert np.shares_memory(to_rgb(RGB), RGB)


def test_black_and_white() -> None:
    mask = GREY > 128
    for picture in (mask, torch.from_numpy(mask), Image.fromarray(mask)):
        np.testing.assert_array_equal(to_rgb(picture), np.repeat(mask[..., None] * np.uint8(255), 3, axis=2))


def test_a_palette() -> None:
    palette = Image.fromarray(RGB).quantize(4)
    np.testing.assert_array_equal(to_rgb(palette), np.asarray(palette.convert("RGB")))


def test_bfloat16() -> None:
    rgb = to_rgb(torch.from_numpy(UNIT).to(torch.bfloat16)).astype(int)
    assert abs(rgb - RGB.astype(int)).max() <= 1


def test_three_decides_between_two_axes_and_the_last_before_the_first() -> None:
    assert to_rgb(np.zeros((3, 8, 4), np.uint8)).shape == (8, 4, 3)
    assert to_rgb(np.zeros((4, 8, 3), np.uint8)).shape == (4, 8, 3)
    assert to_rgb(np.zeros((3, 8, 3), np.uint8)).shape == (3, 8, 3)
    assert to_rgb(np.zeros((1, 8, 4), np.uint8)).shape == (8, 4, 3)


def test_a_16_bit_file(tmp_path: Path) -> None:
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(to_rgb(tmp_path / "deep.png"), GREY_RGB)
    np.testing.assert_array_equal(to_rgb(str(tmp_path / "deep.png")), GREY_RGB)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: None, "got None; open or convert it first"),
        (lambda: 7, "got int"),
        (lambda: b"png", "got bytes"),
        (lambda: [RGB], "got list"),
        (lambda: np.zeros((0, 9, 3), np.uint8), r"at least one pixel, got \[0, 9, 3\]"),
        (lambda: torch.zeros(3, 0, 9), r"at least one pixel, got \[3, 0, 9\]"),
        (lambda: Image.new("RGB", (0, 5)), "at least one pixel, got 0x5"),
        (lambda: np.zeros((5, 9, 2), np.uint8), r"1, 3 or 4 channels, got uint8 \[5, 9, 2\]"),
        (lambda: np.zeros(5, np.uint8), r"got uint8 \[5\]"),
        (lambda: np.zeros((2, 2, 5, 9, 3), np.uint8), r"got uint8 \[2, 2, 5, 9, 3\]"),
        (lambda: UNIT * 255, "lies in \\[0, 1\\], got values from .*; divide it"),
        (lambda: UNIT - 0.5, "lies in \\[0, 1\\], got values from -0"),
        (lambda: RGB.astype(np.int32) * 4, "a picture of int32 lies in 0 to 255, .*or to uint16 for 16 bits"),
        (lambda: RGB.astype(np.int8), "a picture of int8 lies in 0 to 255, got values from -"),
        (lambda: RGB.astype(complex), "holds numbers, got complex128"),
        (lambda: RGB.astype(str), "holds numbers, got <U"),
        (lambda: RGB.astype(object), "holds numbers, got object"),
        (lambda: torch.zeros(3, 4, 4, dtype=torch.complex64), "dense tensor of numbers, got torch.complex64"),
        (lambda: torch.zeros(3, 4, 4).to_sparse(), "dense tensor of numbers"),
        (lambda: torch.zeros(3, 4, 4, device="meta"), "dense tensor of numbers"),
        (lambda: Image.fromarray(np.full((4, 4), 70_000, np.int32)), "16 bits, 0 to 65535, got values from 70000"),
        (lambda: Image.fromarray(np.full((4, 4), 200, np.float32)), "lies in \\[0, 1\\], got values from 200"),
    ],
)
def test_invalid_pictures_are_named_in_one_line(make: Callable[[], Any], match: str) -> None:
    with pytest.raises(ShapeError, match=match) as caught:
        to_rgb(make())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_a_number(value: float) -> None:
    for picture in (
        np.full((4, 4, 3), value),
        torch.full((3, 4, 4), value),
        Image.fromarray(np.full((4, 4), value, "f")),
    ):
        with pytest.raises(NonFiniteError, match="a picture holds NaN or Inf"):
            to_rgb(picture)


def test_files(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(tmp_path / "cut.bmp")
    (tmp_path / "cut.bmp").write_bytes((tmp_path / "cut.bmp").read_bytes()[:-2000])
    for name in ("text.png", "cut.bmp", "."):
        with pytest.raises(ShapeError, match=r"picture"):
            to_rgb(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent\.png; check the path"):
        to_rgb(tmp_path / "absent.png")
