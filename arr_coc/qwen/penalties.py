"""Penalties for tokens that came before: of a repetition, of presence and frequency, and of an n-gram that comes again.

They count tokens of one answer in tensors on the device of the logits, and never synchronise it, so that steps may run
ahead of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from arr_coc.qwen.options import Decoding


class TokenPenalties:
    """Penalties of one answer, for the tokens of its prompt and its own.

    `answer` holds the tokens that the host knows; tensors may be ahead of it by the tokens that `take` was given. The
    state is made when it is first needed.

    - `repetition_penalty` divides positive logits of all tokens of the prompt and the answer, and multiplies negative
      ones (CTRL, arXiv:1909.05858), as transformers does.
    - `presence_penalty` and `frequency_penalty` are subtracted from the logits of tokens of the answer: the first once,
      the second as often as they came. transformers has neither; this is what OpenAI's API and vLLM do.
    - `no_repeat_ngram_size` bars the token that would end an n-gram that the prompt or the answer already has, as
      transformers does.
    """

    def __init__(self, options: Decoding, prompt: Sequence[int], vocabulary: int, device: torch.device) -> None:
        """Begin with a prompt.

        Args:
            options: Options of decoding, of which one `counts_tokens`.
            prompt: Token ids of the prompt, with the id of a picture's placeholder for each visual token; not read
                unless the options `read_prompt`.
            vocabulary: Number of logits. Ids above are never chosen, and have no penalty.
            device: Device of the logits.
        """
        self.answer: list[int] = []
        self._options = options
        self._prompt = list(prompt)
        self._vocabulary = vocabulary
        self._device = device
        self._is_ready = False
        self._seen = torch.empty(0)
        self._counts = torch.empty(0)
        self._ids = torch.empty(0)
        self._length = 0

    def rewind(self) -> None:
        """Return to the tokens of `answer`: those taken after them are discarded."""
        self._is_ready = False

    @torch.inference_mode()
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits [vocabulary] with penalties, float32; those of barred tokens follow with `bar`."""
        self._prepare()
        options = self._options
        scores = logits.to(torch.float32, copy=True)
        if options.repetition_penalty != 1:
            penalised = torch.where(
                scores < 0, scores * options.repetition_penalty, scores / options.repetition_penalty
            )
            scores = torch.where(self._seen, penalised, scores)
        if options.frequency_penalty:
            scores -= options.frequency_penalty * self._counts
        if options.presence_penalty:
            scores -= options.presence_penalty * (self._counts > 0)
        return scores

    @torch.inference_mode()
    def bar(self, scores: torch.Tensor) -> torch.Tensor:
        """Return scores [vocabulary] with -inf for tokens that would repeat an n-gram. If no token is left, which
        happens only if a schema allows few, they stay as they are."""
        size = self._options.no_repeat_ngram_size
        if not size:
            return scores
        self._prepare()
        if self._length < size:
            return scores
        ids = self._ids[: self._length]
        windows = ids.unfold(0, size, 1)
        repeats = (windows[:, :-1] == ids[self._length - size + 1 :]).all(dim=-1)
        # Other windows, and tokens beyond the vocabulary, go to a spare place behind it.
        last = torch.where(repeats, windows[:, -1].clamp(max=self._vocabulary), self._vocabulary)
        barred = torch.zeros(self._vocabulary + 1, dtype=torch.bool, device=scores.device)
        barred = barred.index_fill(0, last, True)[: self._vocabulary]
        left = scores.masked_fill(barred, -torch.inf)
        return torch.where(left.isneginf().all(), scores, left)

    @torch.inference_mode()
    def take(self, token: torch.Tensor) -> None:
        """Count a chosen token, int64 scalar on the device; the host learns of it later."""
        self._prepare()
        options = self._options
        place = token.view(1)
        if options.repetition_penalty != 1:
            self._seen.index_fill_(0, place, True)
        if options.counts_answer:
            self._counts.index_add_(0, place, self._counts.new_ones(1))
        if options.no_repeat_ngram_size:
            self._ids[self._length : self._length + 1] = place
            self._length += 1

    @torch.inference_mode()
    def apply_rows(self, rows: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        """Return the logits [N, vocabulary] before each token of an answer `ids`, and after the last one if N is
        larger, with penalties as if they had been decoded, float32. The answer is left as it was."""
        return self._along(rows, ids, self.apply)

    @torch.inference_mode()
    def bar_rows(self, rows: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        """As `apply_rows`, of `bar`."""
        return self._along(rows, ids, self.bar)

    def _along(
        self, rows: torch.Tensor, ids: Sequence[int], function: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        changed = []
        for row, token in zip(rows, [*ids, None], strict=False):
            changed.append(function(row))
            if token is not None:
                self.take(torch.tensor(token, device=self._device))
        self.rewind()
        return torch.stack(changed)

    def _prepare(self) -> None:
        """Make the state of the prompt and the answer so far."""
        if self._is_ready:
            return
        options = self._options
        if options.repetition_penalty != 1:
            known = [token for token in (*self._prompt, *self.answer) if token < self._vocabulary]
            self._seen = torch.zeros(self._vocabulary, dtype=torch.bool, device=self._device)
            self._seen[torch.tensor(known, dtype=torch.long, device=self._device)] = True
        if options.counts_answer:
            ids = torch.tensor(self.answer, dtype=torch.long, device=self._device)
            self._counts = torch.zeros(self._vocabulary, device=self._device)
            self._counts.index_add_(0, ids, torch.ones(len(ids), device=self._device))
        if options.no_repeat_ngram_size:
            self._length = len(self._prompt) + len(self.answer)
            room = len(self._prompt) + options.max_tokens + 1  # the last one is taken, too
            self._ids = torch.zeros(room, dtype=torch.long, device=self._device)
            ids = torch.tensor([*self._prompt, *self.answer], dtype=torch.long, device=self._device)
            self._ids[: self._length] = ids
        self._is_ready = True
