"""Questions for the allocator that was trained for a model on a server, read from the model's files on this machine.

A server returns no attention and embeds no question. If the model's files are here too, its allocator hears the
question by the rows of the embedding table, as with a model of this machine. Loads torch, but none of the model's
layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.errors import ModelError, ModelNotFound
from arr_coc.hub import ALLOCATOR_FOLDER, cached_folder, local_folder
from arr_coc.qwen.checkpoint import folder_token_ids, read_config, unseen_words
from arr_coc.qwen.weight_files import read_embeddings
from arr_coc.types import QueryEmbedding
from stream.answer.model import WORLD_KEY


class ServedQuestions:
    """Questions about frames whose tokens are sent to the model `name`, which its server calls so.

    `knows_levels`, `knows_wide`, `known_world` and `allocator` are as of AnswerModel; those of an untrained allocator
    and a general model if the model's `folder` is None.
    """

    def __init__(self, name: str, folder: Path | None, allocator: str | None = None) -> None:
        """`allocator`: folder or hub name of an allocator that was made for the model; by default the model's own.

        Raises ModelError and ModelNotFound if its files cannot be used.
        """
        self.name = name
        self._table: Any = None
        self.allocator = b""
        config = {} if folder is None else read_config(folder)
        self.knows_levels = bool(config.get("arr_coc_levels"))
        self.knows_wide = bool(config.get("arr_coc_wide"))
        world = config.get(WORLD_KEY)
        self.known_world = None if world is None else str(world)
        if folder is None:
            self._token_ids = None
        else:
            self._token_ids = folder_token_ids(folder)
        if folder is None and allocator is not None:
            raise ModelError(
                f"the allocator {allocator} hears questions by the embeddings of {name}, which is not on this machine",
                "give -m the folder of the model's files, under which the server serves it, or leave --allocator out",
            )
        if folder is not None and (allocator is not None or (folder / ALLOCATOR_FOLDER).is_dir()):
            self._load(folder, allocator)

    def _load(self, folder: Path, allocator: str | None) -> None:
        from arr_coc.layer_weights import load_bundled_layer, load_layer, serialize_realiser

        table = read_embeddings(folder, self.name)
        if allocator is None:
            layer = load_bundled_layer(folder, table, self.name)
        else:
            layer = load_layer(allocator, table, self.name)
        if layer is not None:
            self._table = table
            self.allocator = serialize_realiser(layer.realiser)

    def embed(self, query: str) -> QueryEmbedding:
        """Return a question's rows of the embedding table; zeros without an allocator that would hear them."""
        if self._table is None or self._token_ids is None:
            return QueryEmbedding(query, np.zeros((1, 1), np.float32), self.name)
        rows = self._table[self._token_ids(query)]
        return QueryEmbedding(query, rows.float().numpy(), self.name)

    def unseen_words(self, query: str) -> tuple[str, ...]:
        """Return the words of a question that a model of a small world has never seen; empty for a general model."""
        if self.known_world is None or self._token_ids is None:
            return ()
        return unseen_words(query, self._token_ids)


def model_files(name: str | None) -> Path | None:
    """Return the folder of a served model's files on this machine: `name` is that folder, or a name on the hub that was
    downloaded before. None for any other name, and for None."""
    try:
        if name is None:
            return None
        return local_folder(name) or cached_folder(name)
    except ModelNotFound:
        return None
