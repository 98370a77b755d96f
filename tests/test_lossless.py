"""Arrays made small and back: not a bit is lost, and what is damaged is said to be."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from stream.errors import TransportError
from stream.lossless import pack_array, unpack_array
from stream.messages import ArraySpec
from stream.packets import specs_of

RNG = np.random.default_rng(0)


def noise(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def slopes(*, tiles: int = 40) -> np.ndarray:
    """Tiles uint8 [K, 3, 32, 32] as a camera gives them: smooth, coloured, with a little noise."""
    y, x = np.mgrid[0:32, 0:32]
    made = [np.stack([x * 2 + y + k, x * 2 + y, x * 2 + y - k]) + RNG.integers(0, 3, (1, 32, 32)) for k in range(tiles)]
    return np.stack(made).astype(np.uint8)


@pytest.mark.parametrize(
    "array",
    [
        noise(7, 3, 32, 32),
        noise(64, 96, 3),
        noise(0, 3, 32, 32),
        noise(5),
        noise(4, 4, 4),
        np.arange(12, dtype=np.int32).reshape(4, 3),
        RNG.random((9, 16), dtype=np.float32),
        np.zeros((0, 3), np.int32),
        slopes()[::2],
        np.asfortranarray(noise(32, 64, 3)),
    ],
    ids=["tiles", "frame", "no tile", "bytes", "no picture", "regions", "scores", "no region", "view", "fortran"],
)
def test_what_was_packed_comes_back_to_the_bit(array: np.ndarray) -> None:
    before = array.copy()
    (spec,) = specs_of(array)
    back = np.frombuffer(unpack_array(pack_array(array), spec), array.dtype).reshape(array.shape)
    np.testing.assert_array_equal(back, before)
    np.testing.assert_array_equal(array, before)


def test_pictures_take_less_than_half_of_what_zlib_leaves() -> None:
    tiles = slopes()
    packed = len(pack_array(tiles))
    assert packed < len(zlib.compress(tiles.tobytes(), 1)) / 2
    frame = np.concatenate(tiles.transpose(0, 2, 3, 1), axis=1)
    assert len(pack_array(frame)) < len(zlib.compress(frame.tobytes(), 1)) / 2


def test_what_is_no_such_array_is_told() -> None:
    tiles = noise(3, 3, 32, 32)
    (spec,) = specs_of(tiles)
    (smaller,) = specs_of(tiles[:2])
    packed = pack_array(tiles)
    for data, announced in ((packed[:-20], spec), (packed, smaller), (pack_array(tiles[:2]), spec)):
        with pytest.raises(TransportError, match="was packed with another size"):
            unpack_array(data, announced)
    with pytest.raises(TransportError, match=r"uint8\[3, 3, 32, 32\] cannot be unpacked"):
        unpack_array(b"garbage", spec)
    for shape in ((1 << 40, 3, 1 << 40), (0, 3, 1 << 62, 1 << 62)):
        with pytest.raises(TransportError):
            unpack_array(packed, ArraySpec("uint8", shape))
