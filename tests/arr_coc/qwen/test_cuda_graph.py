"""The captured step, repeated by a plain call in place of a CUDA graph, against one call a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from arr_coc.errors import NonFiniteError
from arr_coc.qwen import decode
from arr_coc.qwen.attention import PROBED_TOKENS, AttentionProbe
from arr_coc.qwen.cuda_graph import AHEAD_TOKENS, WARM_UP_STEPS, Capture, CudaGraphStep, DecodeRunner, cuda_graph
from arr_coc.qwen.decode import (
    ROOM_TOKENS,
    PrefixCache,
    PromptPart,
    SingleTokenStep,
    decode_one_token,
    linear_rows,
    prefill,
)
from arr_coc.qwen.frame_window import FrameWindow
from arr_coc.qwen.options import AnswerOptions, Decoding, WindowOptions
from arr_coc.qwen.preprocess import grid_regions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import NS_PER_S, FrameStamp, TileGrid, TokenPacket
from tests.support.models import FAMILIES, tiny_qwen


def run_first(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """As a capture does, which needs a few calls before it."""
    for _ in range(WARM_UP_STEPS):
        step()
    return step


CAPTURES = [
    pytest.param(run_first, "cpu", id="repeated"),
    pytest.param(
        cuda_graph,
        "cuda",
        id="cuda-graph",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ),
]


def model(device: str, family: str = FAMILIES[0]) -> QwenVL:
    qwen = tiny_qwen(family)
    qwen.model.to(device)
    return qwen


def prompted(qwen: QwenVL, words: str = "Say what happens.") -> tuple[torch.Tensor, PromptPart, PrefixCache[str]]:
    part, cache = PromptPart(qwen, 0, 0), PrefixCache[str]()
    part.text(qwen.token_ids(words))
    return prefill(qwen, part, cache.kv), part, cache


def answer(qwen: QwenVL, capture: Capture | None, options: Decoding, words: str = "Say what happens.") -> list[int]:
    logits, part, cache = prompted(qwen, words)
    return list(DecodeRunner(qwen, capture).decode(logits, part.position, cache.kv, options))


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_token_through_the_layers_is_the_stock_models(family: str) -> None:
    qwen = tiny_qwen(family)
    _, part, cache = prompted(qwen)
    _, _, other = prompted(qwen)
    one_token = SingleTokenStep(qwen, part.position, cache.kv)
    for index in range(70):
        token = torch.tensor(20 + index)
        stock = decode_one_token(qwen, token, part.position + index, other.kv)
        torch.testing.assert_close(one_token(token), stock, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_token_in_bfloat16_is_the_stock_models(family: str) -> None:
    """A weight of bfloat16 times a vector is added up in float32, so a product differs in its last bit at most."""
    qwen = tiny_qwen(family)
    qwen.model.to(torch.bfloat16)
    _, part, cache = prompted(qwen)
    _, _, other = prompted(qwen)
    one_token = SingleTokenStep(qwen, part.position, cache.kv)
    for index in range(8):
        token = torch.tensor(20 + index)
        stock = decode_one_token(qwen, token, part.position + index, other.kv)
        torch.testing.assert_close(one_token(token), stock, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("amx", [True, False])
@torch.inference_mode()
def test_a_product_of_one_row_is_the_linear_layers(
    amx: bool, dtype: torch.dtype, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "has_amx", lambda: amx)
    torch.manual_seed(0)
    linear, row = torch.nn.Linear(96, 80, bias=bias).to(dtype), torch.randn(1, 96).to(dtype)
    exact = row.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    torch.testing.assert_close(linear_rows(linear, row).double(), exact, atol=1e-3, rtol=2**-7)


@torch.inference_mode()
def test_a_changed_linear_layer_is_called() -> None:
    """An adapter's product is not that of its weight."""

    class Doubled(torch.nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(rows)

    linear = Doubled(8, 4, bias=False).bfloat16()
    row = torch.ones(1, 8).bfloat16()
    assert torch.equal(linear_rows(linear, row), linear(row))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("capture", "device"), CAPTURES)
@torch.inference_mode()
def test_a_captured_step_makes_the_same_logits(capture: Capture, device: str, family: str) -> None:
    qwen = model(device, family)
    logits, part, cache = prompted(qwen)
    _, _, other = prompted(qwen)
    decoder = DecodeRunner(qwen, capture)
    step = decoder._captured(cache.kv, 40)
    assert step is not None
    token = logits.argmax()
    step.begin(token, part.tokens, part.position)
    one_token = SingleTokenStep(qwen, part.position, other.kv)
    for _ in range(40):
        step.advance()
        expected = one_token(token)
        torch.testing.assert_close(step.logits, expected, atol=1e-5, rtol=0)
        token = expected.argmax()
        assert step.choice.tolist() == [int(token), 1]


@pytest.mark.parametrize(("capture", "device"), CAPTURES)
def test_the_same_answers(capture: Capture, device: str) -> None:
    qwen = model(device)
    for options in (Decoding(max_tokens=12), Decoding(max_tokens=1), Decoding(max_tokens=12, temperature=1.3, seed=4)):
        assert answer(qwen, capture, options) == answer(qwen, None, options)


@pytest.mark.parametrize(("capture", "device"), CAPTURES)
def test_one_capture_serves_answer_after_answer(capture: Capture, device: str) -> None:
    """What an earlier answer left behind the prompt is not seen; only a cache that has grown is captured anew."""
    qwen = model(device)
    captured = 0

    def counted(step: Callable[[], None], on: torch.device) -> Callable[[], None]:
        nonlocal captured
        captured += 1
        return capture(step, on)

    logits, part, cache = prompted(qwen)
    cache.mark("prompt", part.tokens, part.position)
    decoder, options = DecodeRunner(qwen, counted), Decoding(max_tokens=20)
    first = list(decoder.decode(logits, part.position, cache.kv, options))
    assert cache.rewind(["prompt"]) == 1
    assert list(decoder.decode(logits, part.position, cache.kv, options)) == first == answer(qwen, None, options)
    assert captured == 1
    long = Decoding(max_tokens=ROOM_TOKENS)
    assert next(decoder.decode(logits, part.position, cache.kv, long)) == first[0]
    assert captured == 2


@pytest.mark.parametrize(("capture", "device"), CAPTURES)
def test_what_is_held_stays_where_the_room_is_full(capture: Capture, device: str) -> None:
    qwen = model(device)
    words = "a" * (ROOM_TOKENS - 1)
    assert len(qwen.token_ids(words)) == ROOM_TOKENS - 1
    assert answer(qwen, capture, Decoding(max_tokens=1), words) == answer(qwen, None, Decoding(max_tokens=1), words)


class NothingOfTheHost(TorchDispatchMode):
    """Refuses operations that read or make a tensor elsewhere than on the model's device."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operation(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, made)) if isinstance(leaf, torch.Tensor)]
        assert {tensor.device.type for tensor in tensors} == {"meta"}, operation
        return made


class WatchedCaptures:
    """Captures steps by running each without anything of the host."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        with torch.inference_mode(), NothingOfTheHost():
            step()
        self.steps += 1
        return step


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_can_be_captured(family: str) -> None:
    """Nothing of it waits for the device or comes from the host; tensors without values tell by refusing both."""
    pytest.importorskip("transformers", "5.0", "before, rotations asked for an autocast that such tensors do not have")
    qwen = tiny_qwen(family)
    if family == "qwen3_vl_moe":
        qwen.model.to(torch.bfloat16)  # without values, grouped products know no other
    _, _, cache = prompted(qwen)
    qwen.model.to("meta")
    for layer in cache.kv.layers:
        layer.room_keys, layer.room_values = layer.room_keys.to("meta"), layer.room_values.to("meta")
    watched = WatchedCaptures()
    vars(qwen)["device"] = torch.device("meta")
    CudaGraphStep(qwen, cache.kv.layers, watched)
    assert watched.steps == 1


def test_it_stops_when_asked_and_at_the_end_token() -> None:
    qwen = tiny_qwen()
    logits, part, cache = prompted(qwen)
    decoder = DecodeRunner(qwen, lambda step, device: step)
    assert len(list(decoder.decode(logits, part.position, cache.kv, Decoding(), lambda: True))) == 1
    ended = torch.zeros_like(logits)
    ended[next(iter(qwen.eos_ids))] = 100
    assert list(decoder.decode(ended, part.position, cache.kv, Decoding())) == []


def test_a_decoder_that_needs_the_stock_forward_gets_it() -> None:
    usual = answer(tiny_qwen(), None, Decoding(max_tokens=5))
    sliding, hooked = tiny_qwen("qwen2_vl"), tiny_qwen()
    sliding.language_model.layers[1].self_attn.sliding_window = 4
    hooked.language_model.layers[1]._hf_hook = object()  # as accelerate has where a model is spread over devices
    assert [one.decodes_plainly for one in (tiny_qwen("qwen2_vl"), sliding, hooked)] == [True, False, False]
    assert answer(hooked, None, Decoding(max_tokens=5)) == usual


def test_so_many_steps_are_ahead_of_what_is_read() -> None:
    qwen = tiny_qwen()
    steps = 0

    def counted(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        def advance() -> None:
            nonlocal steps
            steps += 1
            step()

        return advance

    logits, part, cache = prompted(qwen)
    tokens = DecodeRunner(qwen, counted).decode(logits, part.position, cache.kv, Decoding(max_tokens=6))
    assert [(next(tokens), steps)[1] for _ in range(6)] == [AHEAD_TOKENS, *range(AHEAD_TOKENS + 1, 6), 5, 5]


def looked_at(qwen: QwenVL, capture: Capture | None, tokens: int, read: int) -> torch.Tensor:
    part, cache = PromptPart(qwen, 0, 0), PrefixCache[str]()
    part.text(qwen.token_ids("Say what happens."))
    with AttentionProbe(qwen, cache.kv, slice(1, 4)) as probe:
        logits = prefill(qwen, part, cache.kv)
        decoding = DecodeRunner(qwen, capture).decode(
            logits, part.position, cache.kv, Decoding(max_tokens=tokens), None, probe
        )
        taken: Iterator[int] = (token for token, _ in zip(decoding, range(read), strict=False))
        list(taken)
        decoding.close()
    return probe.attention()


@pytest.mark.parametrize(("tokens", "read"), [(5, 9), (PROBED_TOKENS + 9, 99), (12, 3)])
def test_what_the_first_tokens_looked_at_is_the_same(tokens: int, read: int) -> None:
    """Not what tokens ahead of an answer's end did."""
    qwen = tiny_qwen()
    captured = looked_at(qwen, lambda step, device: step, tokens, read)
    torch.testing.assert_close(captured, looked_at(qwen, None, tokens, read), atol=1e-5, rtol=0)


def packet(seed: int) -> TokenPacket:
    grid, random = TileGrid.of(64, 96), np.random.default_rng(seed)
    regions = grid_regions(grid).numpy().astype(np.int32)
    pixels = random.integers(0, 256, (grid.tiles, 3, 32, 32), dtype=np.uint8)
    return TokenPacket(
        FrameStamp(seed, seed * NS_PER_S, 0, epoch=1), grid, regions, np.ones(grid.tiles, np.float32), pixels
    )


@pytest.mark.parametrize("window", [None, WindowOptions(frames=2)], ids=["a frame", "window"])
@pytest.mark.parametrize(("capture", "device"), CAPTURES)
def test_a_session_says_and_learns_the_same(capture: Capture, device: str, window: WindowOptions | None) -> None:
    """Over frames and questions, of which one makes the room of the cache grow."""
    options = AnswerOptions(decoding=Decoding(max_tokens=12))
    captured, plain = (AnswerSession(model(device), options) for _ in range(2))
    captured._decoder = DecodeRunner(captured.qwen, capture)
    vars(plain.qwen)["decodes_plainly"] = False  # the stock forward, on a GPU too
    plain._decoder = DecodeRunner(plain.qwen)
    windows = [None if window is None else FrameWindow(window) for _ in range(2)]
    long = "Is the cat sleeping? " * 60
    for seed, query in ((0, "What is it?"), (1, "What is it?"), (1, "And now?"), (2, long), (3, "What is it?")):
        said = [
            "".join(session.answer(packet(seed), query, window=seen))
            for session, seen in zip((captured, plain), windows, strict=True)
        ]
        assert said[0] == said[1]
        learnt = [torch.from_numpy(session.last.feedback.attention) for session in (captured, plain)]  # type: ignore[union-attr]
        torch.testing.assert_close(*learnt, atol=1e-5, rtol=0)
    assert captured.last.kept_bytes == plain.last.kept_bytes
    assert captured.prompts.cache.kv.layers[0].room_keys.shape[-2] == 2 * ROOM_TOKENS


def test_logits_that_are_not_finite_end_it() -> None:
    qwen = tiny_qwen()
    logits, part, cache = prompted(qwen)
    broken = torch.full_like(logits, torch.nan)
    for capture in (None, lambda step, device: step):
        with pytest.raises(NonFiniteError, match="token 0"):
            list(DecodeRunner(qwen, capture).decode(broken, part.position, cache.kv, Decoding()))


@pytest.mark.parametrize(
    ("said", "logged"),
    [
        ("operation not permitted when stream is capturing\nmore", "operation not permitted when stream is capturing"),
        ("", "RuntimeError"),
    ],
)
def test_where_nothing_can_be_captured_it_goes_on_without(
    said: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        raise RuntimeError(said)

    qwen = tiny_qwen()
    assert answer(qwen, refuse, Decoding(max_tokens=5)) == answer(qwen, None, Decoding(max_tokens=5))
    (record,) = caplog.records
    assert record.getMessage() == f"decoding continues without a captured graph: {logged}"
