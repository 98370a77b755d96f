"""How a model's own odds of yes are to be read, as its `config.json` says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arr_coc.errors import ModelError

CONFIG_KEY = "arr_coc_yes_no"
"""Where a model's `config.json` holds its calibration: {"scale": a number above 0, "bias": a number}."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The odds of being right that a model's own odds of yes stand for: their logarithm is scale × own + bias.

    That is Platt scaling (Platt, "Probabilistic outputs for support vector machines", 1999). `training.calibration`
    fits it on drawn scenes; without one, the model's own odds are taken as they are.
    """

    scale: float = 1.0
    bias: float = 0.0

    @classmethod
    def read(cls, told: object, name: str) -> Calibration:
        """From the configuration of the model `name`; None gives the neutral one. Raises ModelError for anything else
        than two numbers."""
        if told is None:
            return cls()
        scale: Any
        bias: Any
        scale, bias = (told.get("scale"), told.get("bias")) if isinstance(told, Mapping) else (None, None)
        if not (_is_finite(scale) and _is_finite(bias) and scale > 0):
            raise ModelError(
                f'{CONFIG_KEY} in the config.json of {name} must be {{"scale": a number above 0, "bias": a '
                f"number}}, got {told!r}",
                "make it anew with python -m training.calibration",
            )
        return cls(float(scale), float(bias))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


NEUTRAL = Calibration()
