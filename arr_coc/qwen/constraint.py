"""Constrained decoding: the tokens that may come next in an answer with a schema, by llguidance.

llguidance (https://github.com/guidance-ai/llguidance) runs an Earley parser over a lexer of derivatives, and walks a
trie of the vocabulary. It is loaded with the first schema.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ModelError, OptionError

if TYPE_CHECKING:
    from arr_coc.qwen.qwenvl import QwenVL
    from arr_coc.qwen.text_stream import Thoughts

GRAMMARS_KEPT = 64
"""Compiled schemas that are kept: as many as a server has clients."""

SYMBOLS_MAX = 100_000
"""Limit of a grammar's size."""

LEXER_FUEL = 1_000_000
STEP_FUEL = 200_000
STEP_ITEMS = 50_000
LEXER_STATES = 50_000
"""Limits of work and memory: of the lexer when a schema is compiled (20 ms), and of the lexer and the parser for each
token (14 ms and 3 ms)."""

SPELLING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Spelling of JSON: as Python's json writes it, so that an answer's text follows from its fields."""


class AnswerConstraint:
    """Constraint of one answer's tokens by a grammar.

    It applies after the model's `thoughts`, if there are any; with `may_think`, the first token may begin them.
    `has_ended`: the answer is whole, and nothing may follow.
    """

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._bits = np.zeros((vocabulary + 31) // 32, np.int32)
        self._thoughts: Thoughts | None = None
        self._opening: int | None = None

    def follow(self, thoughts: Thoughts | None, *, may_think: bool) -> None:
        """Set the thoughts that come before the answer; `may_think`: they were requested."""
        self._thoughts = thoughts
        if thoughts is not None and may_think and not thoughts.has_begun:
            self._opening = thoughts.begin
        else:
            self._opening = None

    @property
    def active(self) -> bool:
        """True unless the next token belongs to thoughts."""
        thoughts = self._thoughts
        return thoughts is None or not thoughts.has_begun or thoughts.has_ended

    @property
    def has_ended(self) -> bool:
        """True once nothing may follow, or the grammar's limits are exceeded."""
        return bool(self._matcher.is_stopped())

    def take(self, token: int) -> None:
        """Add a token of the answer; tokens of thoughts have no effect."""
        if self.active and token != self._opening:
            self._matcher.consume_token(token)
        self._opening = None

    def mask(self, logits: torch.Tensor) -> None:
        """Set the logits [vocabulary] of tokens that may not come next to -inf, in place."""
        if not self.active:
            return
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        allowed = np.unpackbits(self._bits.view(np.uint8), count=self._vocabulary, bitorder="little")
        if self._opening is not None:
            allowed[self._opening] = 1
        barred = torch.from_numpy(allowed == 0).to(logits.device)
        logits[: self._vocabulary].masked_fill_(barred, -torch.inf)
        logits[self._vocabulary :] = -torch.inf

    def mask_rows(self, logits: torch.Tensor, ids: Sequence[int]) -> None:
        """Mask the logits [N, vocabulary] before each token of an answer `ids`, and after the last one if N is larger.

        The state is left as it was. Rows behind a token that may not come are not masked.
        """
        state = self._matcher.deep_copy()
        after = AnswerConstraint(state, self._vocabulary)
        for row, token in zip(logits, [*ids, None], strict=False):
            after.mask(row)
            if token is None or not state.consume_token(token):
                break


class GrammarCompiler:
    """Compiler of schemas for the tokens of one model; grammars are kept.

    Raises OptionError if llguidance is missing, ModelError for a tokenizer that it cannot read.
    """

    def __init__(self, qwen: QwenVL) -> None:
        try:
            import llguidance
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise OptionError(
                "answers with a schema need llguidance for a model on this machine",
                "pip install 'arr-coc-stream[schema]'",
            ) from error
        self._library: Any = llguidance
        self._vocabulary = int(qwen.model.config.get_text_config().vocab_size)
        try:
            self._tokens = from_tokenizer(qwen.tokenizer, n_vocab=self._vocabulary, eos_token=sorted(qwen.eos_ids))
        except Exception as error:
            raise ModelError(
                f"the tokenizer of {qwen.model_id} cannot be used for answers with a schema: {error}",
                "leave the schema out, or name another model",
            ) from error
        self._grammars: OrderedDict[str, Any] = OrderedDict()

    def constraint(self, schema: AnswerSchema) -> AnswerConstraint:
        """Return the constraint of an answer. Raises OptionError for a schema that exceeds the limits."""
        matcher = self._grammars.pop(schema.text, None)
        if matcher is None:
            matcher = self._compiled(schema)
        self._grammars[schema.text] = matcher
        if len(self._grammars) > GRAMMARS_KEPT:
            self._grammars.popitem(last=False)
        return AnswerConstraint(matcher.deep_copy(), self._vocabulary)

    def _compiled(self, schema: AnswerSchema) -> Any:
        matcher_type = self._library.LLMatcher
        if schema.choices is not None:
            texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in schema.choices)
            grammar = matcher_type.grammar_from_lark(f"start: {texts}")
        else:
            grammar = matcher_type.grammar_from_json_schema(schema.bounded_schema, defaults=SPELLING)
        limits = self._library.LLParserLimits(
            initial_lexer_fuel=LEXER_FUEL,
            step_lexer_fuel=STEP_FUEL,
            step_max_items=STEP_ITEMS,
            max_lexer_states=LEXER_STATES,
            max_grammar_size=SYMBOLS_MAX,
            verbose_errors=False,
        )
        matcher = matcher_type(self._tokens, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            reason, *_ = matcher.get_error().strip().splitlines()
            raise OptionError(f"the schema cannot be decoded: {reason}", "ask for fewer or shorter fields")
        return matcher
