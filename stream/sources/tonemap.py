"""Tone mapping: frames of HDR video (PQ, HLG) as SDR.

The transform: the signal's light (SMPTE ST 2084, ITU-R BT.2100), relative to HDR's reference white of 203 cd/m²
(BT.2408); the primaries of BT.709; a curve for highlights; gamma 2.4 (BT.1886). It is computed once for each chroma
sample. Each luma sample becomes what a grey of its value does, plus the difference that the colour makes there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace

from stream.sources.samples import Samples, may_be_transparent, samples_of

log = logging.getLogger(__name__)

Floats = npt.NDArray[Any]
"""Numbers of 32 bits."""

WHITE_NITS = 203.0
"""Light of SDR's white in HDR (BT.2408)."""

PEAK_NITS = 1000.0
"""Light that becomes SDR's brightest: HLG's nominal peak, and that of the displays on which most PQ is made. It
is fixed, so that a scene's brightness depends on no other scene."""

KNEE = 0.6
"""Light, relative to the reference white, up to which nothing changes. Above, highlights are compressed."""

_HDR = {16: "pq", 18: "hlg"}
"""AVColorTransferCharacteristic → name."""

_BT2020 = 9
"""AVCOL_PRI_BT2020."""

_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
)  # fmt: skip
"""Linear RGB of BT.2020's primaries → that of BT.709's (BT.2087)."""

_TO_YUV = np.array(
    [
        [219 * 0.2126, 219 * 0.7152, 219 * 0.0722, 16],
        [-112 * 0.2126 / 0.9278, -112 * 0.7152 / 0.9278, 112, 128],
        [112, -112 * 0.7152 / 0.7874, -112 * 0.0722 / 0.7874, 128],
    ]
)  # fmt: skip
"""R'G'B' in [0, 1] → samples of BT.709, of limited range."""

_LUMA = {1: (0.2126, 0.0722), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
"""AVColorSpace → weights of red and blue in luma. Others are BT.601."""


_STEPS = 65_535
"""Largest index of a table, that of 1.0: OpenCV rounds and limits to 16 bits in one pass."""


def becomes_sdr(frame: av.VideoFrame) -> bool:
    """Return True for a frame of PQ or HLG, but for gray and transparent ones: these are shown as they are coded."""
    has_opaque_colour = not frame.format.name.startswith("gray") and not may_be_transparent(frame.format)
    return int(frame.color_trc) in _HDR and has_opaque_colour


def report_hdr(name: str, first: av.VideoFrame) -> None:
    """Say once of a source that it is HDR and shown as SDR, if its first frame is."""
    if becomes_sdr(first):
        log.warning("%s is HDR (%s): it is shown as SDR", name, _HDR[int(first.color_trc)].upper())


def to_sdr(frame: av.VideoFrame, sampling: str) -> av.VideoFrame:
    """Return a planar HDR frame of YUV, of 8 to 16 bits, as SDR: 8-bit YUV of BT.709 and limited range.

    `sampling` is that of its chroma, such as "420". The result has no side data.
    """
    bits = frame.format.components[0].bits
    full_range = frame.format.name.startswith("yuvj") or int(frame.color_range) == int(ColorRange.JPEG)
    coding = _Coding(_HDR[int(frame.color_trc)], int(frame.colorspace), full_range, bits)
    wide_gamut = int(frame.color_primaries) == _BT2020
    luma, u, v = (samples_of(plane, bits) for plane in frame.planes[:3])
    # samples of damaged data may have more bits than the format: a lossless decoder does not limit them
    luma = np.minimum(luma, (1 << bits) - 1)
    if luma.shape == u.shape:
        mean = luma
    else:
        mean = cv2.resize(luma, u.shape[::-1], interpolation=cv2.INTER_AREA)
    converted = _converted(coding, cv2.merge([mean, u, v]), wide_gamut)
    grey = _greys(coding)
    difference = cv2.subtract(np.ascontiguousarray(converted[..., 0]), grey[mean], dtype=cv2.CV_16S)
    if luma.shape != u.shape:
        difference = cv2.resize(difference, luma.shape[::-1], interpolation=cv2.INTER_LINEAR)
    sdr = av.VideoFrame(frame.width, frame.height, f"yuv{sampling}p")
    y8, u8, v8 = map(samples_of, sdr.planes)
    y8[:] = cv2.add(grey[luma], difference, dtype=cv2.CV_8U)
    chroma = cv2.convertScaleAbs(converted)
    u8[:], v8[:] = chroma[..., 1], chroma[..., 2]
    sdr.colorspace = Colorspace.ITU709
    sdr.color_range = ColorRange.MPEG
    sdr.color_trc = 1
    return sdr


@dataclass(frozen=True, slots=True)
class _Coding:
    """Encoding of samples, of which the tables are a function."""

    transfer: str
    matrix: int
    full_range: bool
    bits: int

    def to_rgb(self) -> Floats:
        """Return the affine map of samples (y, u, v) to R'G'B' from 0 to `_STEPS`, [3, 4]."""
        unit = float(1 << (self.bits - 8))
        codes = 256 * unit - 1
        if self.full_range:
            scale = [codes] * 3
        else:
            scale = [219 * unit, 224 * unit, 224 * unit]
        black = [0 if self.full_range else 16 * unit, 128 * unit, 128 * unit]
        kr, kb = _LUMA.get(self.matrix, (0.299, 0.114))
        kg = 1 - kr - kb
        weights = [[1, 0, 2 * (1 - kr)], [1, -2 * kb * (1 - kb) / kg, -2 * kr * (1 - kr) / kg], [1, 2 * (1 - kb), 0]]
        matrix = np.array(weights) / scale * _STEPS
        return np.hstack([matrix, -matrix @ np.array(black)[:, None]])


def _converted(coding: _Coding, samples: Samples, wide_gamut: bool) -> Floats:
    """Return samples of HDR [H, W, 3] as 8-bit samples of SDR, unrounded."""
    signal = cv2.transform(samples.astype(np.float32), coding.to_rgb())
    light = _lights(coding.transfer)[_indices(signal, 1)]
    if coding.transfer == "hlg":
        # HLG's system gamma on a display of 1000 cd/m²
        luminance = np.maximum(light @ np.array([0.2627, 0.678, 0.0593], np.float32), 1e-9)
        light = _times(light, luminance ** np.float32(0.2) * np.float32(1000 / WHITE_NITS))
    if wide_gamut:
        light = np.maximum(cv2.transform(light, _TO_BT709), 0)
    red, green, blue = cv2.split(light)
    brightest = np.maximum(cv2.max(cv2.max(red, green), blue), 1e-6)
    light = _times(light, _compressed(brightest) / brightest)
    # a table of roots is as fine in shadows as in highlights
    return cv2.transform(_gamma()[_indices(cv2.sqrt(light), _STEPS)], _TO_YUV)


def _indices(values: Floats, scale: float) -> npt.NDArray[np.uint16]:
    """Return values times `scale`, rounded and limited to indices of a table."""
    return np.asarray(cv2.multiply(values, scale, dtype=cv2.CV_16U))


def _times(light: Floats, factor: Floats) -> Floats:
    return np.asarray(cv2.multiply(light, cv2.merge([factor] * 3)))


@lru_cache(maxsize=4)
def _greys(coding: _Coding) -> npt.NDArray[np.uint8]:
    """Return what the luma of each grey becomes."""
    codes = 1 << coding.bits
    greys = np.full((1, codes, 3), codes // 2, np.uint16)
    greys[..., 0] = np.arange(codes)
    return np.asarray(cv2.convertScaleAbs(_converted(coding, greys, wide_gamut=False))[0, :, 0])


@lru_cache(maxsize=2)
def _lights(transfer: str) -> Floats:
    """Return the light of each signal in [0, 1]: of PQ relative to the reference white, of HLG that of the scene."""
    signal = np.arange(_STEPS + 1) / _STEPS
    if transfer == "pq":
        root = signal ** (1 / 78.84375)
        light = np.maximum(root - 0.8359375, 0) / (18.8515625 - 18.6875 * root)
        return np.asarray(light ** (1 / 0.1593017578125) * (10_000 / WHITE_NITS), np.float32)
    a = 0.17883277
    b = 0.28466892
    c = 0.55991073
    return np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12).astype(np.float32)


@lru_cache(maxsize=1)
def _gamma() -> Floats:
    """Return the signal of each light, by its square root."""
    return ((np.arange(_STEPS + 1) / _STEPS) ** (2 / 2.4)).astype(np.float32)


def _compressed(light: Floats) -> Floats:
    """Return light relative to SDR's white: unchanged up to `KNEE`, above it bent so that the peak becomes 1.

    The curve is a Möbius transform that goes on smoothly at the knee, as in FFmpeg's filter `tonemap`.
    """
    peak = PEAK_NITS / WHITE_NITS
    a = -(KNEE**2) * (peak - 1) / (KNEE**2 - 2 * KNEE + peak)
    b = (KNEE**2 - 2 * KNEE * peak + peak) / (peak - 1)
    bent = (b**2 + 2 * b * KNEE + KNEE**2) / (b - a) * (light + a) / (light + b)
    return np.asarray(np.where(light <= KNEE, light, np.minimum(bent, 1)), np.float32)
