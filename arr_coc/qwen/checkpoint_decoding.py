"""`CheckpointDecoding`: decoding as a model's `generation_config.json` asks for it (imports no torch)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from arr_coc.errors import ModelError

DecodingSource = Literal["auto", "checkpoint", "plain"]
"""What is taken from a model's GENERATION_FILE: its penalties (`auto`), its sampling too (`checkpoint`), or nothing."""

GENERATION_FILE = "generation_config.json"

PENALTIES = ("repetition_penalty", "no_repeat_ngram_size", "presence_penalty", "frequency_penalty")
"""Values of GENERATION_FILE that change which token is the likeliest. transformers has the first two; the others are
those of OpenAI's API and vLLM."""

SAMPLING = ("temperature", "top_p", "top_k", "min_p")
"""Values of GENERATION_FILE by which tokens are drawn."""

LEAST_TEMPERATURE = 0.01
"""Below it the likeliest token is as good as always drawn, as with Qwen2.5-VL's 1e-6."""

RANGES = {
    "repetition_penalty": (0.0, 100.0),
    "no_repeat_ngram_size": (0, math.inf),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "top_k": (-1, math.inf),
    "min_p": (0.0, 1.0),
}
"""Least and largest value. Files also say "all tokens" as a `top_k` of -1, and "the likeliest" as a `top_p` of 0."""

WITHOUT_EFFECT = {
    "repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
}
"""Values that change nothing."""


@dataclass(frozen=True, slots=True)
class CheckpointDecoding:
    """Decoding that a model's folder asks for, as values of fields of `Decoding`.

    `penalties` and `sampling` hold those that have an effect; `sampling` is empty if the file says no `do_sample`, or
    draws the likeliest token only (a temperature near 0 or a `top_k` of 1, and what stands beside them).
    """

    penalties: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, generation: Mapping[str, Any], name: str) -> CheckpointDecoding:
        """Read the contents of GENERATION_FILE of the model `name`. Raises ModelError for values that cannot be
        used."""
        values = {}
        for key in (*PENALTIES, *SAMPLING):
            value = generation.get(key)
            if value is None:
                continue
            least, most = RANGES[key]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not least <= value <= most or (key in ("top_k", "no_repeat_ngram_size") and value % 1):
                raise ModelError(
                    f"{key} in {GENERATION_FILE} of {name} cannot be used: {value!r}",
                    "correct it there, or remove that line",
                )
            if value not in WITHOUT_EFFECT.get(key, ()):
                values[key] = value
        if values.get("repetition_penalty") == 0:
            raise ModelError(
                f"repetition_penalty in {GENERATION_FILE} of {name} must be above 0", "use 1 there for none"
            )
        penalties = {key: values[key] for key in PENALTIES if key in values}
        sampling = {key: values[key] for key in SAMPLING if key in values}
        warm = sampling.get("temperature", 1.0) >= LEAST_TEMPERATURE
        draws = (
            generation.get("do_sample") is True and warm and sampling.get("top_k") != 1 and sampling.get("top_p") != 0
        )
        return cls(penalties, sampling if draws else {})

    def completed(self, chosen: Mapping[str, Any], source: DecodingSource = "auto") -> dict[str, Any]:
        """Return options of decoding: those that were chosen, then those of the folder.

        Args:
            chosen: Values by the names of `Decoding`; None for one that was not chosen. Without a `temperature` above
                0, tokens are drawn only with `checkpoint`.
            source: What is taken from the folder.
        """
        options = {name: value for name, value in chosen.items() if value is not None}
        if source == "plain":
            return options
        defaults = dict(self.penalties)
        if options.get("temperature"):
            defaults |= self.sampling
        elif source == "checkpoint" and self.sampling:
            options.pop("temperature", None)
            defaults |= {"temperature": 1.0, **self.sampling}
        return {**defaults, **options}

    @property
    def notice(self) -> str:
        """Line about it for the user; empty if the folder asks for nothing."""
        parts = []
        if self.penalties:
            parts.append(f"decoding as {GENERATION_FILE} says, unless answer.* does: {_listed(self.penalties)}")
        if self.sampling:
            parts.append(
                f"{GENERATION_FILE} asks for sampling ({_listed(self.sampling)}): answers take the likeliest tokens, "
                "unless answer.decoding = checkpoint or a temperature is given"
            )
        return "; ".join(parts)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
