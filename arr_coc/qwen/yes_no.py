"""Yes/no score of a prefilled question, calibrated by the model's config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc.errors import ModelError, NonFiniteError

CONFIG_KEY = "arr_coc_yes_no"
"""Key of the calibration in a model's `config.json`: {"scale": a number above 0, "bias": a number}."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibration of a model's odds of yes: calibrated log odds = scale × the model's log odds + bias.

    This is Platt scaling (Platt, "Probabilistic outputs for support vector machines", 1999). `training.calibration`
    fits it on drawn scenes; the default leaves the model's odds unchanged.
    """

    scale: float = 1.0
    bias: float = 0.0

    @classmethod
    def read(cls, value: object, name: str) -> Calibration:
        """Read the calibration from the configuration of the model `name`; None gives the neutral one. Raises
        ModelError for any value but a mapping of two numbers."""
        if value is None:
            return cls()
        scale: Any
        bias: Any
        scale, bias = (value.get("scale"), value.get("bias")) if isinstance(value, Mapping) else (None, None)
        if not (_is_finite(scale) and _is_finite(bias) and scale > 0):
            raise ModelError(
                f'{CONFIG_KEY} in the config.json of {name} must be {{"scale": a number above 0, "bias": a '
                f"number}}, got {value!r}",
                "make it anew with python -m training.calibration",
            )
        return cls(float(scale), float(bias))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


NEUTRAL = Calibration()


YES = ("yes", "Yes", "YES", " yes", " Yes", " YES")
NO = ("no", "No", "NO", " no", " No", " NO")
"""First words of an answer. Spellings without a single token in the tokenizer are left out."""


@dataclass(frozen=True, slots=True)
class YesNoTokens:
    """Ids of the tokens that mean yes and no."""

    yes: tuple[int, ...]
    no: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class YesNoScore:
    """Score of a yes/no question. `yes`: calibrated probability of yes, given that the answer is yes or no. `mass`:
    total probability of the two; small if it is not a yes/no question. Both in [0, 1]. `raw_log_odds`: the
    model's log odds of yes, uncalibrated."""

    yes: float
    mass: float
    raw_log_odds: float = 0.0


def yes_no_tokens(tokenizer: Any, model_id: str) -> YesNoTokens:
    """Return the tokens for yes and no of a model's tokenizer. Raises ModelError if it lacks one of them."""
    yes, no = (_single_tokens(tokenizer, spellings) for spellings in (YES, NO))
    if not yes or not no:
        raise ModelError(
            f"the tokenizer of {model_id} has no single token for {'no' if yes else 'yes'}, so it cannot "
            "watch for anything",
            "give another model",
        )
    return YesNoTokens(yes, no)


def score_logits(logits: torch.Tensor, tokens: YesNoTokens, calibration: Calibration = NEUTRAL) -> YesNoScore:
    """Score the first token of an answer.

    Args:
        logits: Logits of the token, [vocabulary].
        tokens: Ids of the tokens for yes and no.
        calibration: Calibration of the odds.

    Raises:
        NonFiniteError: NaN or Inf in the logits.
    """
    if not bool(logits.isfinite().all()):
        raise NonFiniteError("the logits of a yes or no hold NaN or Inf; try dtype float32 or bfloat16")
    logs = torch.log_softmax(logits.double(), dim=-1)
    yes, no = (logs[list(ids)].logsumexp(dim=0) for ids in (tokens.yes, tokens.no))
    log_odds = yes - no
    return YesNoScore(
        yes=float(torch.sigmoid(calibration.scale * log_odds + calibration.bias)),
        mass=min(1.0, float(yes.exp() + no.exp())),
        raw_log_odds=float(log_odds),
    )


def _single_tokens(tokenizer: Any, spellings: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ids of spellings that are one token and decode to the same text, unlike an unknown-word token."""
    encoded = {text: tokenizer(text, add_special_tokens=False)["input_ids"] for text in spellings}
    token_ids = {ids[0] for text, ids in encoded.items() if len(ids) == 1 and tokenizer.decode(ids) == text}
    return tuple(sorted(token_ids))
