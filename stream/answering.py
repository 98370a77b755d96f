"""What answers depend on beside packets and questions: the program, the model's files, and the settings of who answers.

The answer stage tells it with its greeting, because it may run elsewhere, with settings of its own. A recording
carries it, and a replay answers by it.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Annotated, Any

import msgspec

from arr_coc.errors import ModelNotFound
from arr_coc.hub import local_folder
from stream.config import Config
from stream.errors import RecordingError
from stream.identity import weights_of

OF_ANSWERS = {
    "encode",
    "incremental",
    "window",
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
    "feedback",
    "device",
    "dtype",
    "target_ms",
}
"""Keys of `answer` by which given packets are answered; the latency target, because it bounds a window's frames."""


class Answering(msgspec.Struct, frozen=True):
    """`model` as it was named (None: the bundled one), `weights` what its files are, `threads` of torch.

    `settings`: of the configuration, what changes answers to given packets.
    """

    program: str
    model: str | None
    weights: str
    threads: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    settings: dict[str, Any]


def answering(config: Config) -> str:
    """What an answer stage of this process answers by, as JSON; to be called once its model is there."""
    import torch

    name = config.answer.model
    settings = config.model_dump(mode="json", include={"answer": OF_ANSWERS, "allocate": {"budget"}})
    told = Answering(version("arr-coc-stream"), _found_again(name), weights_of(name), torch.get_num_threads(), settings)
    return msgspec.json.encode(told).decode()


def read_answering(text: str) -> Answering:
    """What `answering` told. Raises RecordingError where it is none."""
    try:
        return msgspec.json.decode(text, type=Answering)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(f"the recording does not tell what it was answered by ({error}); record it anew") from None


def config_of(told: Answering) -> Config:
    """The configuration of an answer stage that answers as that one did. Raises RecordingError."""
    try:
        return Config.model_validate_json(json.dumps(told.settings))
    except ValueError as error:
        reason = str(error).splitlines()[-1].strip()
        raise RecordingError(
            f"the recording's settings are not of this program ({reason}); replay it with version {told.program}, "
            "which recorded it"
        ) from None


def _found_again(name: str | None) -> str | None:
    """The model's name as it can be used from any directory."""
    try:
        folder = None if name is None else local_folder(name)
    except ModelNotFound:
        return name
    return name if folder is None else str(folder.resolve())
