"""Published saliency without training, on small maps: baselines of where to look."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.qwen.preprocess import Rgb

Map = npt.NDArray[np.float32]

SPECTRAL_SIDE = 64
"""Side of the picture whose spectrum is taken, as in the paper."""

TEXELS_A_TILE = 8
"""Side of a tile in small maps."""


def spectral_residual(image: Rgb, shape: tuple[int, int]) -> Map:
    """Return what is left of the log spectrum without its smooth part (Hou and Zhang, CVPR 2007): float32 [rows, cols].

    Args:
        image: uint8 [H, W, 3].
        shape: (rows, cols) of the tiles.
    """
    grey = cv2.resize(
        cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (SPECTRAL_SIDE, SPECTRAL_SIDE), interpolation=cv2.INTER_AREA
    )
    spectrum = np.fft.fft2(grey.astype(np.float64))
    log_spectrum = np.log(np.abs(spectrum) + 1e-9)
    residual = log_spectrum - cv2.blur(log_spectrum, (3, 3))
    saliency = np.abs(np.fft.ifft2(np.exp(residual + 1j * np.angle(spectrum)))) ** 2
    return of_tiles(cv2.GaussianBlur(saliency.astype(np.float32), (9, 9), 2.5), shape)


def frequency_tuned(image: Rgb, shape: tuple[int, int]) -> Map:
    """Return how far a blurred picture's colours are from its mean colour (Achanta et al., CVPR 2009): [rows, cols].

    Args:
        image: uint8 [H, W, 3].
        shape: (rows, cols) of the tiles.
    """
    lab = cv2.cvtColor(small_picture(image, shape, TEXELS_A_TILE).astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    distance = np.linalg.norm(cv2.GaussianBlur(lab, (5, 5), 0) - lab.mean(axis=(0, 1)), axis=2)
    return of_tiles(distance.astype(np.float32), shape)


def small_picture(image: Rgb, shape: tuple[int, int], texels: int) -> Rgb:
    """A picture with so many pixels a side for each tile."""
    small: Rgb = cv2.resize(image, (shape[1] * texels, shape[0] * texels), interpolation=cv2.INTER_AREA)
    return small


def of_tiles(values: Map, shape: tuple[int, int]) -> Map:
    """The mean of a map over each tile."""
    mean: Map = cv2.resize(values, (shape[1], shape[0]), interpolation=cv2.INTER_AREA)
    return mean
