"""Words of a question that a model of a small world has never seen: what it says of them means nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

WORD = re.compile(r"[^\W\d_]+")


def unseen_words(question: str, token_ids: Callable[[str], list[int]]) -> tuple[str, ...]:
    """The words of `question` that take several tokens, in their order, each once, in lower case.

    For a model whose tokenizer was made from its own small world, and so has a token for every word of it. Words in
    capitals are read letter by letter ("is there a word STOP?") and count as seen. `token_ids` are those of a text.
    """
    words = [word.lower() for word in WORD.findall(question) if len(word) == 1 or not word.isupper()]
    return tuple(dict.fromkeys(word for word in words if len(token_ids(f" {word}")) > 1))


def folder_token_ids(folder: Path) -> Callable[[str], list[int]]:
    """Token ids of a text by the `tokenizer.json` in a model's folder, without transformers."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)
