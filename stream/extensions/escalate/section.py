"""Section `[escalate]` of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from arr_coc.hub import bundled_model_path
from stream.config import Config, ExtensionSection, FileName
from stream.options.option import Option


class EscalateSection(ExtensionSection):
    """A larger model for answers that the run's own is unsure of (docs/models.md#a-larger-model-for-unsure-answers)."""

    section: ClassVar[str] = "escalate"
    switch: ClassVar[str] = "model"
    changes_answers: ClassVar[bool] = True

    model: Annotated[
        FileName | None,
        Option(
            "--escalate MODEL",
            "Larger model that answers where the run's own is unsure. [off]",
            without="demo",
            also="serve-answers",
            group="Question",
        ),
    ] = Field(default=None, examples=['"Qwen/Qwen3-VL-8B-Instruct"'])
    """Folder or hub name of a larger Qwen-VL model, which answers where the run's own is unsure of its answer. It is
    loaded beside that at the start."""
    below: Annotated[
        float,
        Option(
            "--escalate-below P",
            "Escalate an answer with a token less probable than this. [{default}]",
            without="demo",
            also="serve-answers",
            group="Question",
        ),
    ] = Field(default=0.5, gt=0, le=1)
    """An answer is unsure if its least likely token, or its end, has a probability below this."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        """Yield keys whose values are right alone and not together, and the remedy."""
        if self.model is None:
            return
        answer = config.answer
        key = "escalate.model"
        if config.model_key is not None:
            yield key, f"escalate.model needs a model of this program; leave it out, or {config.model_key}"
        elif answer.server is not None:
            yield key, "escalate.model stands beside the model; give --escalate to serve-answers in place of this run"
        elif _same_model(self.model, answer.model):
            yield key, f"escalate.model = {self.model} is the run's own model; name a larger one, or leave it out"
        if answer.thinking != "off":
            yield key, f"escalate.model needs answers without thoughts; leave answer.thinking = {answer.thinking} out"


def _same_model(name: str, own_name: str | None) -> bool:
    """Return True if two names mean one folder, or one model of the hub."""
    own = str(bundled_model_path()) if own_name is None else own_name
    return name == own or Path(name).expanduser().resolve() == Path(own).expanduser().resolve()
