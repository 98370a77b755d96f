"""Check that a model can know a standing query: one that was made for a small world is asked about nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from arr_coc.hub import bundled_model_path, local_folder
from arr_coc.qwen.checkpoint import folder_token_ids, read_config, unseen_words
from stream.config import Config
from stream.errors import ConfigError
from stream.recording.identity import SCENE_PREFIX

WORLD_KEY = "arr_coc_world"
"""What a model's `config.json` calls the only world that it knows."""

_REMEDY = "name a Qwen-VL model with -m, or give --force to run anyway"


@dataclass(frozen=True, slots=True)
class Doubt:
    """Reason that a model's yes means nothing here: `refusal` with what to do, `warning` as it stands beside each
    yes."""

    refusal: str
    warning: str


def doubt_about(model: str, world: str | None, unseen: tuple[str, ...], *, knows_source: bool) -> Doubt | None:
    """Return the objection to a standing query with a model that only knows `world`, None for a general one.

    `unseen`: words of the question that it has never seen. `knows_source`: the source shows this world.
    """
    if world is None:
        return None
    if not knows_source:
        return Doubt(
            f"{model} only knows {world}, so its yes means nothing for this source; {_REMEDY}",
            f"means nothing: the model only knows {world}",
        )
    if not unseen:
        return None
    words = ", ".join(map(repr, unseen))
    what = "the word" if len(unseen) == 1 else "the words"
    return Doubt(
        f"{model} only knows {world} and has never seen {what} {words}, so its yes means nothing; "
        f"ask for what it knows, such as a red circle, {_REMEDY}",
        f"means nothing: the model has never seen {what} {words}",
    )


def shows_scenes(config: Config) -> bool:
    """Return True if the source is a drawn scene."""
    return config.source.startswith(SCENE_PREFIX)


def check_watched(config: Config) -> None:
    """Raises ConfigError where a model on this machine cannot know what is watched for, before anything is opened.

    A model elsewhere tells the same of itself when it is met.
    """
    question = config.answer.until.question
    if question is None or config.answer.until.force or config.answer.server is not None:
        return
    name = config.answer.model
    folder = bundled_model_path() if name is None else local_folder(name)
    world = None if folder is None else read_config(folder).get(WORLD_KEY)
    if folder is None or world is None:
        return
    unseen = unseen_words(question, folder_token_ids(folder))
    doubt = doubt_about(folder.resolve().name, str(world), unseen, knows_source=shows_scenes(config))
    if doubt is not None:
        raise ConfigError(doubt.refusal)
