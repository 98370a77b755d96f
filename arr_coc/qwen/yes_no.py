"""Yes/no score of a prefilled question, calibrated as config.json says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc.errors import ModelError, NonFiniteError

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
    def read(cls, given: object, name: str) -> Calibration:
        """Read the calibration from the configuration of the model `name`; None gives the neutral one. Raises
        ModelError for anything else than two numbers."""
        if given is None:
            return cls()
        scale: Any
        bias: Any
        scale, bias = (given.get("scale"), given.get("bias")) if isinstance(given, Mapping) else (None, None)
        if not (_is_finite(scale) and _is_finite(bias) and scale > 0):
            raise ModelError(
                f'{CONFIG_KEY} in the config.json of {name} must be {{"scale": a number above 0, "bias": a '
                f"number}}, got {given!r}",
                "make it anew with python -m training.calibration",
            )
        return cls(float(scale), float(bias))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


NEUTRAL = Calibration()


YES = ("yes", "Yes", "YES", " yes", " Yes", " YES")
NO = ("no", "No", "NO", " no", " No", " NO")
"""How an answer may begin. A spelling that a tokenizer has no single token for is left out."""


@dataclass(frozen=True, slots=True)
class YesNoTokens:
    """Ids of the tokens that mean yes and no."""

    yes: tuple[int, ...]
    no: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class YesNoScore:
    """`yes`: the probability of yes, given that it is yes or no, calibrated. `mass`: how probable one of the two is
    at all; that is small where the question is none that yes or no answers. Both in [0, 1]. `raw_log_odds`: the
    logarithm of the odds of yes as the model has them."""

    yes: float
    mass: float
    raw_log_odds: float = 0.0


def yes_no_tokens(tokenizer: Any, model_id: str) -> YesNoTokens:
    """The tokens for yes and no of a model's tokenizer. Raises ModelError where it lacks one of them."""
    yes, no = (_single_tokens(tokenizer, spellings) for spellings in (YES, NO))
    if not yes or not no:
        raise ModelError(
            f"the tokenizer of {model_id} has no single token for {'no' if yes else 'yes'}, so it cannot "
            "watch for anything",
            "give another model",
        )
    return YesNoTokens(yes, no)


def score_logits(logits: torch.Tensor, tokens: YesNoTokens, calibration: Calibration = NEUTRAL) -> YesNoScore:
    """Score the logits [vocabulary] of an answer's first token. Raises NonFiniteError where they hold NaN or Inf."""
    if not bool(logits.isfinite().all()):
        raise NonFiniteError("the logits of a yes or no hold NaN or Inf; try dtype float32 or bfloat16")
    logs = torch.log_softmax(logits.double(), dim=-1)
    yes, no = (logs[list(ids)].logsumexp(dim=0) for ids in (tokens.yes, tokens.no))
    own = yes - no
    return YesNoScore(
        yes=float(torch.sigmoid(calibration.scale * own + calibration.bias)),
        mass=min(1.0, float(yes.exp() + no.exp())),
        raw_log_odds=float(own),
    )


def _single_tokens(tokenizer: Any, spellings: tuple[str, ...]) -> tuple[int, ...]:
    """Those that are one token, and come back from it as they are: not as some token for the unknown."""
    encoded = {text: tokenizer(text, add_special_tokens=False)["input_ids"] for text in spellings}
    found = {ids[0] for text, ids in encoded.items() if len(ids) == 1 and tokenizer.decode(ids) == text}
    return tuple(sorted(found))
