"""The next token of an answer: through the stock model, and chosen from its logits."""

from __future__ import annotations

from typing import Any

import torch

from arr_coc.errors import NonFiniteError
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.qwenvl import QwenVL


@torch.inference_mode()
def decode_one_token(qwen: QwenVL, token: torch.Tensor, position: int, kv: Any) -> torch.Tensor:
    """Add one token to the cache, through the stock model's forward.

    `DecodeStep` computes the same faster if the model `decodes_plainly`.

    Args:
        qwen: The model.
        token: Id of the token, int64 scalar on the model's device.
        position: Its text position.
        kv: The stock cache.

    Returns:
        Logits after the token, [vocabulary].
    """
    embeds = qwen.language_model.embed_tokens(token.view(1, 1))
    place = torch.full((3, 1, 1), float(position), device=embeds.device)
    hidden = qwen.language_model(
        inputs_embeds=embeds, position_ids=place, past_key_values=kv, use_cache=True
    ).last_hidden_state
    return qwen.model.lm_head(hidden[0, -1])


@torch.inference_mode()
def choose(logits: torch.Tensor, options: Decoding, generator: torch.Generator | None) -> torch.Tensor:
    """Choose the next token.

    Nucleus sampling (arXiv:1904.09751): from the likeliest tokens whose probabilities reach `top_p`, at least one. A
    `top_k` above 0 first limits the tokens to the likeliest `top_k`, with their probabilities normalised.

    Args:
        logits: [vocabulary].
        options: Temperature, `top_p` and `top_k`; at temperature 0, the likeliest token is chosen.
        generator: Generator of the draw, on the device of the logits.

    Returns:
        The token's id, int64 scalar, not synchronised.
    """
    if options.temperature == 0:
        return logits.argmax()
    chances, tokens = torch.softmax(logits.float() / options.temperature, dim=-1).sort(descending=True)
    if options.top_k:
        chances = chances[: options.top_k]
        tokens = tokens[: options.top_k]
        chances = chances / chances.sum()
    before = chances.cumsum(0) - chances
    chances = torch.where(before < options.top_p, chances, 0.0)
    # The draw of `multinomial`, without its device synchronisation.
    race = torch.empty_like(chances).exponential_(generator=generator)
    return tokens[(chances / race).argmax()]


def choose_finite(
    logits: torch.Tensor, options: Decoding, generator: torch.Generator | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the next token, and check its logits.

    Args:
        logits: [vocabulary].
        options: As in `choose`.
        generator: As in `choose`.

    Returns:
        The token's id, and 1 if all logits are finite, else 0: int64 scalars, not synchronised.
    """
    finite = logits.isfinite().all()
    token = choose(torch.where(finite, logits, 0.0), options, generator)
    return token, finite.to(token.dtype)


def not_finite(index: int) -> NonFiniteError:
    """Return the error for non-finite logits of an answer's token number `index`."""
    return NonFiniteError(f"the logits of answer token {index} hold NaN or Inf; try dtype float32 or bfloat16")
