"""QueryStream: the tiles that are relevant to the question and new, against a smoothed history of what was shown.

After "QueryStream: Advancing Streaming Video Understanding with Query-Aware Pruning and Proactive Response" (ICLR 2026,
openreview.net/forum?id=738HjJEbml), its Query-Aware Differential Pruning, here before the encoder. The paper compares
features of CLIP for every tile; here relevance is the allocator's, and novelty is that of pixels, as for `evs`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.allocation.evs import Change, Tiles

HISTORY_WEIGHT = 0.1
"""Weight of a frame that is shown in the history, as in the paper's code."""


def relevant_news(relevance: npt.NDArray[np.float32], novelty: Change | None, tokens: int) -> Tiles:
    """Return the tiles of one frame that are relevant and new; of equals, the first.

    Those that are new and of more than mean relevance come first, then the others, each by relevance times novelty.
    Tokens that remain once every new tile is shown go by relevance.

    Args:
        relevance: Relevance of each tile, float32 [gh, gw].
        novelty: By how much each tile differs from the history, float [gh, gw]; None without a history: all are new.
        tokens: Number of tiles.

    Returns:
        The tiles, bool [gh, gw].
    """
    flat = relevance.ravel()
    if novelty is None:
        news = np.ones(flat.shape, np.float32)
    else:
        news = novelty.ravel()
    passes = (flat > flat.mean()) & (news > 0)
    order = np.lexsort((-flat, -flat * news, ~passes))  # the last key counts first
    tiles = np.zeros(flat.size, bool)
    tiles[order[:tokens]] = True
    return tiles.reshape(relevance.shape)
