"""Starts a model from the weights of an earlier one, whose words may have had other numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from arr_coc.errors import ModelError, ModelNotFound
from training.tokenizer import scenes_tokenizer

_EMBEDDINGS = "model.language_model.embed_tokens.weight"


@torch.no_grad()
def begin_with(model: Any, folder: Path) -> None:
    """Copies every weight; a word's embedding goes where the word is now, a new word begins as the mean of its pieces.

    Raises ModelNotFound where the folder holds no model, ModelError where it is one of other dimensions.
    """
    shards = sorted(folder.glob("model*.safetensors"))
    if not shards:
        raise ModelNotFound(f"{folder} holds no model*.safetensors")
    found = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    own = model.state_dict()
    for name, tensor in found.items():
        if name == _EMBEDDINGS:
            _carry_words(own[name], tensor.float(), Tokenizer.from_file(str(folder / "tokenizer.json")))
        elif name in own and own[name].shape == tensor.shape:
            own[name].copy_(tensor)
        else:
            raise ModelError(f"{folder} does not fit this version's model: {name} is {list(tensor.shape)}")


def _carry_words(embeddings: torch.Tensor, before: torch.Tensor, tokenizer: Tokenizer) -> None:
    ours = scenes_tokenizer()
    for word, number in ours.get_vocab().items():
        known = tokenizer.token_to_id(word)
        pieces = [known] if known is not None else tokenizer.encode(ours.decode([number])).ids
        if pieces:
            embeddings[number] = before[pieces].mean(dim=0)
