"""One of two configurations that are compared: `Side`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from arr_coc.hub import allocator_folder, local_folder
from evaluation.errors import ChoiceError
from evaluation.run import NO_ALLOCATOR, ModelOptions
from evaluation.runner import StrategyRun, plan
from stream.config import AnswerConfig

DTYPES: tuple[str, ...] = get_args(AnswerConfig.model_fields["dtype"].annotation)

DEFAULTS = {"strategy": "arr-coc", "budget": "27%", "dtype": "auto"}
KEYS = (*DEFAULTS, "encode", "model", "allocator")


@dataclass(frozen=True, slots=True)
class Side:
    """A configuration under its `name`, with the `settings` that were given for it."""

    name: str
    settings: Mapping[str, str]
    model: ModelOptions
    way: StrategyRun

    @classmethod
    def parse(cls, name: str, text: str, device: str = "auto") -> Side:
        """Read "budget=10%,dtype=int8"; what is not given is `DEFAULTS`, and each strategy's own encoding.

        Raises ChoiceError for a key or value that does not exist, ModelNotFound for a folder that does not.
        """
        option = f"--{name.lower()}"
        settings = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, sign, value = (piece.strip() for piece in part.partition("="))
            if not sign or not value or key not in KEYS:
                raise ChoiceError(f"{option} has KEY=VALUE, comma-separated, with {', '.join(KEYS)}; got {part!r}")
            if key in settings:
                raise ChoiceError(f"{option} has {key} twice; give one value on each side")
            settings[key] = value
        values = DEFAULTS | settings
        if values["dtype"] not in DTYPES:
            raise ChoiceError(f"{option}: dtype is one of {', '.join(DTYPES)}; got {values['dtype']!r}")
        model = ModelOptions(values.get("model"), values.get("allocator"), device, values["dtype"])
        if model.model is not None:
            local_folder(model.model)
        if model.allocator not in (None, NO_ALLOCATOR):
            allocator_folder(model.allocator)
        (way,) = plan(values["strategy"], values["budget"], values.get("encode"), seeds=1)
        return cls(name, settings, model, way)
