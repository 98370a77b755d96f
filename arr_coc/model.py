"""`ARRCOCQwen`: a Qwen-VL model that looks at the tokens that matter for the question, as a library."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.group import GroupOptions
from arr_coc.answer_schema import AnswerSchema
from arr_coc.budget import DEFAULT_BUDGET, DEFAULT_LIMITS, Budget, TokenLimits
from arr_coc.errors import OptionError, counted
from arr_coc.qwen.chat import ChatPrompt, Message, fitted_model, prompt_of_messages, prompts_of_inputs
from arr_coc.qwen.encoding import Packet
from arr_coc.qwen.generation import MAX_TOKENS, Generation, Timings, decoding_of
from arr_coc.qwen.glancing import GlanceChoice, Glancer, OverviewChoice, resolve_glance, unshown_tokens
from arr_coc.qwen.loading import DeviceMap, load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding, Thinking
from arr_coc.qwen.pieces import Ids
from arr_coc.qwen.preprocess import Picture, Rgb, to_frames
from arr_coc.qwen.processor_inputs import ProcessorInputs
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.resize import pad_to_max_aspect
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.slot import AnswerResult, GlanceResult
from arr_coc.types import NS_PER_S, Encode, FrameStamp, TokenPacket
from arr_coc.video.picture_allocator import PictureAllocator
from arr_coc.video.stream import Stream

if TYPE_CHECKING:
    from typing import Self, Unpack  # of Python 3.11

log = logging.getLogger(__name__)

__all__ = ["ARRCOCQwen", "Generation", "Timings"]

FRAMES_PER_S = 2.0
"""Rate of frames without given times; as Qwen3-VL's processor samples video."""


class GenerateOptions(TypedDict, total=False):
    """Options of `ARRCOCQwen.generate` by name alone."""

    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    stop_loops: bool
    max_new_tokens: int
    do_sample: bool
    stop_strings: str | Sequence[str]
    generation_config: Any
    glance: GlanceChoice
    overview: OverviewChoice
    limits: TokenLimits
    on_text: Callable[[str], None] | None
    should_stop: Callable[[], bool] | None
    thinking: Thinking
    schema: str | Mapping[str, Any] | Sequence[str] | None


class BatchOptions(GenerateOptions, total=False):
    """Options of `ARRCOCQwen.generate` for anything but one question about a picture."""

    max_tokens: int | None
    budget: Budget
    encode: Encode
    strategy: str
    temperature: float | None
    seed: int


@dataclass(frozen=True, slots=True)
class _GenerateCall:
    """Options of one call of `generate`."""

    allocator: AllocatorOptions
    encode: Encode
    on_text: Callable[[str], None] | None
    should_stop: Callable[[], bool] | None
    schema: AnswerSchema | None


class ARRCOCQwen:
    """A Qwen3.5 or Qwen3-VL (also MoE), Qwen2.5-VL or Qwen2-VL model with a budget of visual tokens.

    `generate` answers questions, `stream` follows a video. Its weights stay as they are;
    `arr_coc.finetune.TrainableQwen` trains them. Not for several threads at once.

    `qwen` holds model, tokenizer, preprocessing and allocator together. `fallbacks` counts frames whose allocation
    failed, and that were answered with all their tokens. `last_relevance_scores` float32 [rows, cols] and
    `last_num_tokens_used` are `heatmap` and `tokens_used` of the last answer; None before it.
    """

    def __init__(self, qwen: QwenVL) -> None:
        """Tokens are chosen by the allocator that came with the model; without one, the question has no effect."""
        self.qwen = qwen
        self.fallbacks = 0
        self.last_relevance_scores: torch.Tensor | None = None
        self.last_num_tokens_used: int | None = None
        self._session = AnswerSession(qwen)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path | None = None,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype | None = None,
        torch_dtype: str | torch.dtype | None = None,
        device_map: DeviceMap | None = None,
        token: str | None = None,
        allocator: str | Path | None = None,
        cache_weights: bool = False,
    ) -> Self:
        """Load a model, in eval mode.

        Args:
            name: Folder, or name on the hub; None for the bundled model.
            device: As `load_qwen`.
            dtype: Name or torch dtype; `auto` if not given.
            torch_dtype: Its name in older transformers.
            device_map: As transformers takes it.
            token: For private and gated repositories.
            allocator: Folder or name of an allocator in place of the model's own.
            cache_weights: Whether weights of 8 and 4 bits are kept beside the model.

        Raises:
            OptionError: `dtype` and `torch_dtype` differ.
            ArrCocError: As `load_qwen`.
        """
        if dtype is not None and torch_dtype not in (None, dtype):
            raise OptionError(f"dtype={dtype} and torch_dtype={torch_dtype} are the same; give one")
        load_dtype = "auto" if dtype is None and torch_dtype is None else dtype or torch_dtype
        assert load_dtype is not None
        qwen = load_qwen(
            name,
            device=device,
            dtype=load_dtype,
            device_map=device_map,
            token=token,
            allocator=allocator,
            cache_weights=cache_weights,
        )
        for notice in qwen.notices:
            log.warning("%s: %s", qwen.model_id, notice)
        return cls(qwen)

    @property
    def config(self) -> Any:
        """The stock model's configuration."""
        return self.qwen.model.config

    @property
    def device(self) -> torch.device:
        """The device of the language model's embeddings."""
        return self.qwen.device

    @property
    def dtype(self) -> torch.dtype:
        """The stock model's dtype."""
        return self.qwen.model.dtype

    @overload
    def generate(
        self,
        image_or_frames: Picture | Sequence[Picture],
        query: str,
        max_tokens: int | None = None,
        budget: Budget = DEFAULT_BUDGET,
        encode: Encode = "sparse",
        strategy: str = "auto",
        temperature: float | None = None,
        seed: int = 0,
        *,
        times_s: Sequence[float] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation: ...

    @overload
    def generate(
        self,
        image_or_frames: Picture | Sequence[Picture | Sequence[Picture]],
        query: list[str] | tuple[str, ...],
        **options: Unpack[BatchOptions],
    ) -> list[Generation]: ...

    @overload
    def generate(self, *, messages: list[Message], **options: Unpack[BatchOptions]) -> Generation: ...

    @overload
    def generate(self, *, messages: list[list[Message]], **options: Unpack[BatchOptions]) -> list[Generation]: ...

    @overload
    def generate(self, *, input_ids: torch.Tensor, **inputs_and_options: Any) -> list[Generation]: ...

    def generate(
        self,
        image_or_frames: Picture | Sequence[Picture | Sequence[Picture]] | None = None,
        query: str | Sequence[str] | None = None,
        max_tokens: int | None = None,
        budget: Budget = DEFAULT_BUDGET,
        encode: Encode = "sparse",
        strategy: str = "auto",
        temperature: float | None = None,
        seed: int = 0,
        *,
        messages: Sequence[Message] | Sequence[Sequence[Message]] | None = None,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        mm_token_type_ids: torch.Tensor | None = None,
        max_new_tokens: int | None = None,
        do_sample: bool | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        no_repeat_ngram_size: int | None = None,
        stop_loops: bool = False,
        stop_strings: str | Sequence[str] | None = None,
        generation_config: Any | None = None,
        times_s: Sequence[float] | None = None,
        glance: GlanceChoice = "auto",
        overview: OverviewChoice = "auto",
        limits: TokenLimits = DEFAULT_LIMITS,
        on_text: Callable[[str], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        thinking: Thinking = "off",
        schema: str | Mapping[str, Any] | Sequence[str] | None = None,
        **others: Any,
    ) -> Generation | list[Generation]:
        """Answer a question about pictures, a batch of questions, a chat, or a processor's inputs.

        - A picture, or several frames in order (a list, or an array [T, …]), and a text as `query`: one `Generation`.
        - A list of texts as `query`, and a list of pictures (or of lists of frames), or one picture for all: a list.
        - `messages`, a chat whose last turn is answered (`arr_coc.qwen.chat`): one; a list of chats: a list.
        - `**inputs` of the model's processor (`input_ids`, `attention_mask`, `pixel_values`, `image_grid_thw`): a list,
          one for each sequence.

        Answers of a list are made one after the other. Chats and inputs show their pictures in the template's own
        layout; the last user's turn is the question that tokens are chosen for, and glances drop their overview.

        A picture is a file, a Pillow image, an array or a tensor (`arr_coc.texture.pictures.to_rgb`); those of a list
        may be of several sizes. It is resized as the model's own processor does, so that with `encode="full"`, or a
        budget of all tiles, the answer about a picture is the stock model's. One that is more than 200 times as long as
        wide is padded by its edge pixels.

        Args:
            image_or_frames: A picture, several frames, or a list of either.
            query: The question, or a list of them.
            max_tokens: Most tokens of an answer; 64 if not given.
            budget: Visual tokens a frame, a share of its tiles ("27%" or 0.27), "auto" (27 %, within `limits`) or
                "adaptive" (within `limits`, by how widely relevance is spread).
            encode: How the chosen tokens are encoded.
            strategy: How the budget is spent.
            temperature: Above 0, tokens are drawn; otherwise the likeliest one is taken. Penalties, and of drawn tokens
                `top_p`, `top_k` and `min_p`, are those of the model's `generation_config.json` if not given.
            seed: Of draws.
            messages: A chat, or a list of chats.
            input_ids: int64 [B, S] as the model's chat template and tokenizer make them. A run of `<|image_pad|>`
                stands for a picture: one for each tile, as Qwen's processor writes it, or a single one.
            attention_mask: [B, S], 0 for padding, on either side.
            pixel_values: float [patches, 3 · 2 · p · p], the normalised patches of all pictures, in the order of their
                runs, as Qwen's processor makes them.
            image_grid_thw: int64 [pictures, 3], (1, rows, columns) of each picture's patches.
            mm_token_type_ids: Made by processors; not needed.
            max_new_tokens: Name of `max_tokens` in transformers.
            do_sample: Whether tokens are drawn; without a temperature, at that of the model.
            top_p: Share of the probability from which they are drawn.
            top_k: Number of the likeliest tokens from which they are drawn.
            min_p: Least probability of a token that is drawn, as a share of the likeliest one's.
            repetition_penalty: Divisor of the logits of tokens that the prompt or the answer has; 1 for none.
            presence_penalty: Subtracted from the logit of a token that the answer has; 0 for none.
            frequency_penalty: Subtracted from a token's logit each time that the answer has it; 0 for none.
            no_repeat_ngram_size: Tokens of the runs that may come only once in prompt and answer; 0 for none.
            stop_loops: Whether an answer that repeats itself ends at its second repetition.
            stop_strings: The answer ends with the first of them, which is part of it.
            generation_config: Of transformers; gives these options if they are not given by name.
            times_s: Times of the frames; half a second apart if not given.
            glance: Whether a coarse overview is looked at with the question in mind, before tokens are chosen: at the
                first frame, and at a later one if much is new. `auto`: if no trained allocator came with the model, its
                attention can be read, and `encode` takes chosen tokens only. A `GlanceOptions` says more.
            overview: Whether the overview stays in the prompt; the budget pays for it either way.
            limits: Of the budgets "auto" and "adaptive".
            on_text: Called with each piece of the answer once it is decoded.
            should_stop: Called after every token; true ends the answer.
            thinking: Of a model that thinks before it answers, thoughts are left out of the text (`hide`), part of it
                (`show`), or not asked for (`off`). They count as tokens of the answer.
            schema: Form of the answer, as a JSON Schema, as field names and types (`{"people": "integer"}`), or as a
                list of texts of which it is one; then `fields` of the result holds the values. It needs llguidance.
            **others: Further options of transformers.

        Raises:
            FileNotFoundError, ShapeError, NonFiniteError: Pictures or tensors that cannot be used.
            BudgetError, StrategyError, ContextLengthError: Tokens that cannot be chosen or do not fit.
            ModelError: A glance is required of a model that cannot.
            OptionError: A wrong option, also one of transformers that cannot be followed, such as beams; it is named.
        """
        if max_tokens is not None and max_new_tokens not in (None, max_tokens):
            raise OptionError(f"max_tokens={max_tokens} and max_new_tokens={max_new_tokens} are the same; give one")
        decoding_options = {
            "max_new_tokens": max_new_tokens if max_tokens is None else max_tokens,
            "do_sample": do_sample,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "no_repeat_ngram_size": no_repeat_ngram_size,
            "stop_strings": stop_strings,
        }
        decoding = decoding_of(decoding_options, generation_config, others, self.qwen, seed, stop_loops=stop_loops)
        inputs = None
        if input_ids is not None:
            inputs = ProcessorInputs(input_ids, attention_mask, pixel_values, image_grid_thw)
        elif not all(tensor is None for tensor in (attention_mask, pixel_values, image_grid_thw, mm_token_type_ids)):
            raise OptionError("a processor's inputs need input_ids", "give all that it returns: generate(**inputs)")
        ways = (image_or_frames is not None or query is not None, messages is not None, inputs is not None)
        if sum(ways) != 1:
            raise OptionError(
                "generate takes one of a picture with a question, messages, and a processor's inputs, got "
                f"{counted(sum(ways), 'of them', 'of them')}"
            )
        if times_s is not None and not isinstance(query, str):
            raise OptionError("times_s are those of the frames of one question", "ask one question at a time")
        self._prepare()
        self._session.configure(AnswerOptions(encode, decoding, feedback=False, thinking=thinking))
        glancing = resolve_glance(self._session, glance, overview)
        allocator = AllocatorOptions(strategy, budget, explore=0.0, seed=seed, glance=glancing, limits=limits)
        if schema is None:
            form = None
        else:
            form = AnswerSchema.of_value(schema)
        if form is not None and thinking == "show":
            raise OptionError("thoughts that are part of an answer fit no schema", 'give thinking="hide" or "off"')
        call = _GenerateCall(allocator, encode, on_text, should_stop, form)
        if inputs is not None:
            return [self._answer_chat(prompt, call) for prompt in prompts_of_inputs(self.qwen, inputs)]
        if messages is not None:
            chats: list[Any] = [messages]
            several = isinstance(messages, (list, tuple)) and messages and isinstance(messages[0], (list, tuple))
            if several:
                chats = list(messages)
            prompts = [prompt_of_messages(self.qwen, chat, thinking=thinking != "off") for chat in chats]
            answers = [self._answer_chat(prompt, call) for prompt in prompts]
            return answers if several else answers[0]
        if isinstance(query, (list, tuple)):
            pairs = _question_pairs(image_or_frames, query)
            return [self._answer(pictures, question, None, call) for pictures, question in pairs]
        return self._answer(image_or_frames, query, times_s, call)

    def stream(
        self,
        query: str,
        *,
        budget: Budget = DEFAULT_BUDGET,
        strategy: str = "auto",
        memory: GroupOptions | None = None,
        max_tokens: int = MAX_TOKENS,
        glance: GlanceChoice = "auto",
        schema: str | Mapping[str, Any] | Sequence[str] | None = None,
    ) -> Stream:
        """Return a stream for a program's own loop: `update` with each frame, `answer`, `ask` and `idle`.

        Each stream has its own cache. An answer that repeats itself ends at its second repetition.

        Args:
            query: The standing question.
            budget: As in `generate`, of a frame from which a group of pictures begins, and so are the next.
            strategy: How tokens are chosen.
            memory: Limits of the model's memory of the stream; None: 2048 tokens.
            max_tokens: Longest answer.
            glance: Whether the model first looks at an overview.
            schema: Form of the answers to the standing question.

        Raises:
            BudgetError, StrategyError, OptionError, ModelError: As `generate`.
        """
        self._prepare()
        penalties = self.qwen.checkpoint_decoding.completed({})
        decoding = Decoding(max_tokens, stop_loops=True, **penalties)
        session = AnswerSession(self.qwen, AnswerOptions("sparse", decoding))
        glancing = resolve_glance(session, glance, "auto")
        options = AllocatorOptions(strategy, budget, glance=glancing, memory=memory or GroupOptions())
        if schema is None:
            form = None
        else:
            form = AnswerSchema.of_value(schema)
        return Stream(self.qwen, session, query, options, form)

    def forget(self) -> None:
        """Drop what was kept of earlier answers, so that the next one costs what the first one did.

        Without it, frames that come again are not read again.
        """
        self._session.forget()

    def _prepare(self) -> None:
        """Prepare for an answer. A model whose weights change drops here what depends on earlier ones."""

    def _answer(
        self, image_or_frames: Any, query: Any, times_s: Sequence[float] | None, call: _GenerateCall
    ) -> Generation:
        """Return the answer to one question about a picture or frames."""
        _check_question(query)
        allocator = PictureAllocator(self.qwen, query, call.allocator, call.encode)
        pictures = [pad_to_max_aspect(picture) for picture in to_frames(image_or_frames)]
        glancer = Glancer(self._session, query, timed=len(pictures) > 1)
        packets: list[Packet] = []
        started_s = time.perf_counter()
        for picture, stamp in zip(pictures, _stamps(len(pictures), times_s), strict=True):
            packets.append(allocator.allocate(picture, stamp, glancer.after(packets)))
        spent_ms = (time.perf_counter() - started_s) * 1e3
        self.fallbacks += allocator.fallbacks
        self._speak(self._session.answer(packets, query, call.should_stop, call.schema), call)
        answer_input = _AnswerInput(packets, glancer.glances, allocator.relevance, pictures[-1], spent_ms)
        return self._kept(answer_input.generation(self._session.last, call.schema))

    def _answer_chat(self, prompt: ChatPrompt, call: _GenerateCall) -> Generation:
        """Return the answer that follows a whole prompt; tokens of each picture are chosen by itself."""
        if prompt.fitted:
            qwen = fitted_model(self.qwen)
        else:
            qwen = self.qwen
        glance = call.allocator.glance
        options = replace(call.allocator, glance=None if glance is None else replace(glance, keep=False))
        answer_input = _AnswerInput([], [], np.zeros((0, 0), np.float32), None, 0.0)
        pieces: list[Ids | Packet] = []
        started_s = time.perf_counter()
        for piece in prompt.pieces:
            if isinstance(piece, tuple):
                pieces.append(piece)
                continue
            _check_question(prompt.query)
            allocator = PictureAllocator(qwen, prompt.query, options, call.encode)
            glancer = Glancer(self._session, prompt.query, timed=False)
            packet = allocator.allocate(piece, _stamps(len(answer_input.packets) + 1, None)[-1], glancer.after([]))
            pieces.append(packet)
            self.fallbacks += allocator.fallbacks
            answer_input = _AnswerInput(
                [*answer_input.packets, packet],
                [*answer_input.glances, *glancer.glances],
                allocator.relevance,
                piece,
                0.0,
            )
        answer_input = replace(answer_input, spent_ms=(time.perf_counter() - started_s) * 1e3)
        self._speak(self._session.answer_chat(pieces, call.should_stop, call.schema), call)
        return self._kept(answer_input.generation(self._session.last, call.schema))

    def _kept(self, answer: Generation) -> Generation:
        self.last_relevance_scores = torch.from_numpy(answer.heatmap)
        self.last_num_tokens_used = answer.tokens_used
        return answer

    def _speak(self, answer: Generator[str, None, None], call: _GenerateCall) -> None:
        with closing(answer) as pieces:
            for piece in pieces:
                if call.on_text is not None:
                    call.on_text(piece)
        most = self._session.options.decoding.max_tokens
        if self._session.last.is_lost_in_thoughts(most):
            log.warning("hidden thoughts took max_new_tokens = %d, and no answer is left; raise it", most)
        if self._session.last.work.looped:
            log.warning("an answer repeated itself and was ended; give repetition_penalty, such as 1.05")


@dataclass(frozen=True, slots=True)
class _AnswerInput:
    """Input of one answer: `packets` of its pictures, the `glances` made for them, `relevance` [gh, gw] and
    `picture` of the newest; allocating and glancing took `spent_ms`."""

    packets: list[Packet]
    glances: list[GlanceResult]
    relevance: npt.NDArray[np.float32]
    picture: Rgb | None
    spent_ms: float

    def generation(self, answer: AnswerResult, schema: AnswerSchema | None) -> Generation:
        """Return the result of `generate`."""
        newest = self.packets[-1] if self.packets else None
        fields = None
        if schema is not None:
            with suppress(ValueError):  # an answer that was cut off
                fields = schema.fields_of(answer.text)
        glance_ms = sum(glance.took_ms for glance in self.glances)
        return Generation(
            text=answer.text,
            heatmap=self.relevance,
            tokens_used=answer.work.tokens_used + unshown_tokens(self.glances, self.packets),
            regions=answer.regions,
            timings=Timings(
                allocate_ms=self.spent_ms - glance_ms,
                encode_ms=answer.work.encode_ms,
                prefill_ms=answer.work.prefill_ms,
                decode_ms=answer.work.decode_ms,
                glance_ms=glance_ms,
            ),
            vision=answer.vision,
            picture=self.picture,
            overview=newest.overview if isinstance(newest, TokenPacket) else 0,
            text_tokens=answer.work.text_tokens,
            kept_bytes=answer.work.kept_bytes,
            token_ids=answer.token_ids,
            fields=fields,
            looped=answer.work.looped,
        )


def _question_pairs(pictures: Any, questions: Sequence[str]) -> list[tuple[Any, str]]:
    """Return each question with its picture; one picture is every question's."""
    if not questions:
        raise OptionError("there is no question in the list; give at least one")
    stacked = isinstance(pictures, (np.ndarray, torch.Tensor)) and pictures.ndim == 4
    if not stacked and not isinstance(pictures, (list, tuple)):
        return [(pictures, question) for question in questions]
    if len(pictures) != len(questions):
        raise OptionError(
            f"there are {counted(len(questions), 'question')} and {counted(len(pictures), 'picture')}",
            "give a picture for each question, or one picture that is in no list",
        )
    return list(zip(pictures, questions, strict=True))


def _check_question(query: object) -> None:
    if not isinstance(query, str) or not query.strip():
        raise OptionError(f'a question is text that is not empty, got {query!r}; give one such as "Say what happens."')


def _stamps(frames: int, times_s: Sequence[float] | None) -> list[FrameStamp]:
    if times_s is not None and not all(isinstance(at_s, Real) and math.isfinite(at_s) for at_s in times_s):
        raise OptionError(f"times_s must hold finite numbers of seconds, got {list(times_s)}")
    if times_s is None:
        times = [index / FRAMES_PER_S for index in range(frames)]
    else:
        times = list(times_s)
    if len(times) != frames or any(after < before for before, after in pairwise(times)):
        raise OptionError(f"times_s must hold one time for each frame, {frames} in order, got {times}")
    return [FrameStamp(index, round(at_s * NS_PER_S), round(at_s * NS_PER_S)) for index, at_s in enumerate(times)]
