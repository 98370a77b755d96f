"""Result of `ARRCOCQwen.generate`, and conversion of transformers' generation options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from arr_coc.errors import OptionError, counted
from arr_coc.qwen.answer_picture import Rgb, answer_picture, png
from arr_coc.qwen.checkpoint_decoding import PENALTIES, SAMPLING
from arr_coc.qwen.encoding import VisionStats
from arr_coc.qwen.options import Decoding

if TYPE_CHECKING:
    from arr_coc.qwen.qwenvl import QwenVL


@dataclass(frozen=True, slots=True, repr=False)
class Timings:
    """Times in milliseconds: choosing tokens, encoding them, from there to the first token, and from there to the last;
    `glance_ms` for glances while tokens were chosen, not part of `allocate_ms`."""

    allocate_ms: float
    encode_ms: float
    prefill_ms: float
    decode_ms: float
    glance_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.allocate_ms + self.glance_ms + self.encode_ms + self.prefill_ms + self.decode_ms

    def __repr__(self) -> str:
        return f"Timings({', '.join(f'{field.name}={getattr(self, field.name):.1f}' for field in fields(self))})"


@dataclass(frozen=True, slots=True, repr=False)
class Generation:
    """An answer. Its repr is one line; a notebook shows the newest picture with heat map and tiles, and the text.

    `heatmap` float32 [gh, gw] in [0, 1]: the newest frame's relevance. `regions` int32 [K, 3] (shape, row, col): its
    shown regions, of which the first `overview` are a coarse overview. `tokens_used`: visual tokens of all frames,
    including overviews that were only glanced at. `vision`: statistics of encoding the newest frame with
    `encode="incremental"`, which encodes only the changes of later frames. `picture` uint8 [H, W, 3]: the newest one.
    `text_tokens` counts the tokens of the answer, and `token_ids` are their ids, without the end token; `kept_bytes`:
    memory of cached frames, keys and values after it. `fields`: values of an answer with a schema; None without one,
    and if the answer was cut off before its end. `looped`: the answer repeated itself, and was ended at its second
    repetition. An answer to a prompt without pictures has an empty heat map and no regions.
    """

    text: str
    heatmap: npt.NDArray[np.float32]
    tokens_used: int
    regions: npt.NDArray[np.int32]
    timings: Timings
    vision: VisionStats | None = None
    picture: Rgb | None = None
    overview: int = 0
    text_tokens: int = 0
    kept_bytes: int = 0
    token_ids: tuple[int, ...] = ()
    fields: dict[str, Any] | None = None
    looped: bool = False

    def __repr__(self) -> str:
        rows, cols = self.heatmap.shape
        tokens = counted(self.tokens_used, "visual token")
        return f"Generation({self.text!r}, {tokens}, heat map {rows}x{cols}, {self.timings.total_ms:.0f} ms)"

    def _repr_png_(self) -> bytes | None:
        """Return the newest picture with heat map and tiles, and the text below it, as a PNG."""
        if self.picture is None:
            return None
        return png(answer_picture(self.picture, self.heatmap, self.regions, self.overview, self.text))


MAX_TOKENS = 64
"""Default limit of tokens of an answer."""

HONOURED = ("max_new_tokens", "do_sample", *SAMPLING, *PENALTIES, "stop_strings")
"""Options that `generate` follows."""

WHOLE = frozenset({"max_new_tokens", "top_k", "no_repeat_ngram_size"})

WITHOUT_EFFECT = frozenset(
    (
        *(
            "bos_token_id",
            "pad_token_id",
            "decoder_start_token_id",
            "use_cache",
            "cache_implementation",
            "cache_config",
        ),
        *("max_cache_len", "prefill_chunk_size", "compile_config", "disable_compile", "low_memory", "is_assistant"),
        *(
            "continuous_batching_config",
            "transformers_version",
            "early_stopping",
            "length_penalty",
            "diversity_penalty",
        ),
        *("renormalize_logits", "remove_invalid_values", "num_assistant_tokens", "num_assistant_tokens_schedule"),
        *("assistant_confidence_threshold", "max_matching_ngram_size", "assistant_lookbehind", "target_lookbehind"),
    )
)
"""Ignored options of transformers, which change no answer: memory, speed, padding, and beams, which are refused."""

NEUTRAL = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1),
    **dict.fromkeys(("encoder_repetition_penalty", "typical_p", "guidance_scale"), 1),
}
"""Neutral values of other options of transformers; for options not listed, 0 and False."""


def decoding_of(
    arguments: Mapping[str, Any],
    generation_config: Any | None,
    others: Mapping[str, Any],
    qwen: QwenVL,
    seed: int,
    *,
    stop_loops: bool = False,
) -> Decoding:
    """Return the decoding options: the arguments of a call, else those of a `GenerationConfig`, else the model's own.

    Without `do_sample`, tokens are sampled only if the call has a temperature above 0. So of the model's own options
    the penalties always hold, and those of sampling once tokens are sampled.

    Args:
        arguments: Options of the call by name; None for one that it leaves out.
        generation_config: A `GenerationConfig` of transformers, if any.
        others: Keyword arguments of the call without a parameter.
        qwen: The model.
        seed: Seed of the sampling.
        stop_loops: As in `Decoding`.

    Raises:
        OptionError: An unsupported value; the message names its option.
    """
    defaults: dict[str, Any] = {}
    if generation_config is not None:
        if not hasattr(generation_config, "to_dict"):
            kind = type(generation_config).__name__
            raise OptionError(f"generation_config must be a GenerationConfig of transformers, got {kind}")
        defaults = {name: value for name, value in generation_config.to_dict().items() if not name.startswith("_")}
    options = {name: value for name, value in arguments.items() if value is not None}
    values = {**{name: value for name, value in defaults.items() if value is not None}, **others, **options}
    if values.get("max_new_tokens") is not None:
        values.pop("max_length", None)
    for name, value in values.items():
        if name not in HONOURED and name != "eos_token_id" and name not in WITHOUT_EFFECT:
            _refuse_effect(name, value)
    _check_end(values.get("eos_token_id"), qwen.eos_ids)
    sampling = values.get("do_sample")
    if sampling is None:
        sampling = options.get("temperature", 0) != 0
    elif not sampling and options.get("temperature"):
        raise OptionError(
            f"do_sample=False and temperature={options['temperature']} contradict each other", "leave one of them out"
        )
    stop_strings = values.get("stop_strings") or ()
    names = ("max_new_tokens", *SAMPLING, *PENALTIES)
    own = qwen.checkpoint_decoding
    numbers = {name: _number(name, values[name]) for name in names if values.get(name) is not None}
    most = numbers.pop("max_new_tokens", MAX_TOKENS)
    if not sampling:
        numbers.pop("temperature", None)
    elif "temperature" not in numbers:
        numbers["temperature"] = own.sampling.get("temperature", 1.0)
    return Decoding(
        max_tokens=int(most),
        seed=seed,
        stop_strings=(stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings),
        stop_loops=stop_loops,
        **own.completed(numbers),
    )


def _number(name: str, value: Any) -> float:
    """Return the value of an option that is a number. Raises OptionError for any other value."""
    kind: type = int if name in WHOLE else float
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(f"{name} must be a number, got {value!r}", "leave it out, or correct it") from error
    if number != value and kind is int:
        raise OptionError(f"{name} must be a whole number, got {value!r}", "leave it out, or correct it")
    return float(number) if kind is float else number


def _refuse_effect(name: str, value: Any) -> None:
    """Raise OptionError unless the value of an option is neutral."""
    if value is None or (isinstance(value, (int, float)) and value == NEUTRAL.get(name, 0)):
        return
    remedies = {
        "max_length": "give max_new_tokens, the tokens of the answer alone",
        "streamer": "give on_text, which gets each piece of the answer",
        "stopping_criteria": "give should_stop or stop_strings",
    }
    if isinstance(value, (int, float, str)):
        description = f"{name}={value!r}"
    else:
        description = name
    raise OptionError(
        f"generate does not take {description}", remedies.get(name, f"leave it out; it follows {', '.join(HONOURED)}")
    )


def _check_end(eos_token_id: int | Sequence[int] | None, end_ids: frozenset[int]) -> None:
    if isinstance(eos_token_id, int):
        ids = [eos_token_id]
    else:
        ids = list(eos_token_id or ())
    if not end_ids.issuperset(ids):
        raise OptionError(
            f"generate ends answers with the model's own tokens {sorted(end_ids)}, got eos_token_id={eos_token_id}",
            "give stop_strings for other ends",
        )
