"""Glances: packets with an overview, the reuse of its keys, and the attention that a glance returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.errors import ContextLengthError, ModelError, NonFiniteError, OptionError
from arr_coc.qwen.attention import glanced_layers
from arr_coc.qwen.cache import empty_cache
from arr_coc.qwen.encoding import encode_packet
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.session import AnswerSession
from arr_coc.texture.regions import overview_regions
from arr_coc.types import FrameStamp, TileGrid, TokenPacket
from tests.support.models import FAMILIES, tiny_qwen

GRID = TileGrid.of(192, 256)
QUERY = "Is the cat sleeping?"
OTHER_QUERY = "Say what happens."


def parts(seed: int = 0, tiles: int = 7, media_s: float = 0.0) -> tuple[TokenPacket, TokenPacket]:
    """Return a glance packet of one frame, and a packet with the same overview followed by some tiles."""
    random = np.random.default_rng(seed)
    overview = overview_regions(GRID.shape, 12).astype(np.int32)
    rows, cols = np.divmod(np.sort(random.permutation(GRID.tiles)[:tiles]), GRID.cols)
    tile_regions = np.stack([np.zeros_like(rows), rows, cols], axis=1).astype(np.int32)
    regions = np.concatenate([overview, tile_regions])
    pixels = random.integers(0, 256, (len(regions), 3, 32, 32), dtype=np.uint8)
    stamp = FrameStamp(seed, round(media_s * 1e9), 0, epoch=1)
    packet = TokenPacket(stamp, GRID, regions, np.ones(len(regions), np.float32), pixels, len(overview))
    return packet.overview_part(), packet


def session(family: str = "qwen3_vl", **options: Any) -> AnswerSession:
    return AnswerSession(tiny_qwen(family), AnswerOptions(decoding=Decoding(max_tokens=8), **options))


def answer_text(speaking: AnswerSession, *arguments: Any) -> str:
    return "".join(speaking.answer(*arguments))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("encode", ["sparse", "incremental"])
def test_an_answer_after_a_glance_equals_a_fresh_one_and_prefills_the_rest_only(family: str, encode: Any) -> None:
    glance, packet = parts()
    speaking = session(family, encode=encode)
    fresh = AnswerSession(speaking.qwen, speaking.options)
    result = speaking.glance(glance, QUERY)
    assert result.work.tokens_used == 12
    text, text_afresh = answer_text(speaking, packet, QUERY), answer_text(fresh, packet, QUERY)
    assert text == text_afresh
    assert speaking.last.work.tokens_used == fresh.last.work.tokens_used == 19
    opening = len(speaking.prompts.ids.head + speaking.prompts.ids.frame_open)
    assert speaking.last.work.prefilled_tokens == fresh.last.work.prefilled_tokens - opening - 12
    np.testing.assert_allclose(speaking.last.feedback.attention, fresh.last.feedback.attention, atol=1e-4)
    np.testing.assert_array_equal(speaking.last.regions, fresh.last.regions)
    assert speaking.last.operations == fresh.last.operations


def test_an_overview_is_encoded_once_for_glance_and_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def noting(qwen: Any, packet: TokenPacket, *rest: Any) -> Any:
        encoded.append(len(packet.regions))
        return encode_packet(qwen, packet, *rest)

    monkeypatch.setattr("arr_coc.qwen.prompt.encode_packet", noting)
    glance, packet = parts()
    speaking = session()
    speaking.glance(glance, QUERY)
    answer_text(speaking, packet, QUERY)
    answer_text(speaking, packet, OTHER_QUERY)
    assert encoded == [12, 7]


def test_another_frames_overview_is_read_anew() -> None:
    glance, _ = parts(0)
    _, other = parts(1)
    speaking, fresh = session(), session()
    fresh.qwen = speaking.qwen
    speaking.glance(glance, QUERY)
    assert answer_text(speaking, other, QUERY) == answer_text(fresh, other, QUERY)
    assert speaking.last.work.prefilled_tokens == fresh.last.work.prefilled_tokens - len(speaking.prompts.ids.head)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_overview_does_not_depend_on_what_is_chosen(family: str) -> None:
    qwen, (glance, packet) = tiny_qwen(family), parts()
    overview, frame = encode_packet(qwen, glance, "sparse"), encode_packet(qwen, packet, "sparse")
    assert torch.equal(frame.tokens.embeds[:, :12], overview.tokens.embeds)
    selection = encode_packet(qwen, packet.chosen_part(), "sparse")
    assert torch.equal(frame.tokens.embeds[:, 12:], selection.tokens.embeds)
    assert [len(rows[0]) for rows in frame.tokens.deepstack] == [19] * len(overview.tokens.deepstack)


def test_overview_and_chosen_tokens_have_their_positions_in_the_frame() -> None:
    _, packet = parts()
    speaking = session()
    prompt = speaking.prompts.make([packet], QUERY, lambda: None)
    start = len(speaking.prompts.ids.head + speaking.prompts.ids.frame_open)
    rows = prompt.part.inputs()["position_ids"][:, 0, prompt.newest]
    side = 2.0 ** packet.regions[:, 0]
    middle = packet.regions[:, 1:] * side[:, None] + (side[:, None] - 1) / 2
    assert rows[0].tolist() == [start] * 19
    np.testing.assert_allclose(rows[1:].T, middle + start)
    after = prompt.part.inputs()["position_ids"][0, 0, prompt.newest.stop]
    assert after == start + max(GRID.shape), "the frame ends once, behind both parts"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_glance_returns_the_attention_of_the_last_token(family: str) -> None:
    glance, _ = parts()
    speaking = session(family)
    feedback = speaking.glance(glance, QUERY).feedback
    assert feedback.regions.tolist() == glance.regions.tolist()
    assert feedback.stamp == glance.stamp
    speaking.qwen.model.set_attn_implementation("eager")
    prompt = session(family).prompts.make_glance([glance], QUERY, lambda: None, timed=False)
    with torch.inference_mode():
        weights = speaking.qwen.language_model(
            **prompt.part.inputs(),
            past_key_values=empty_cache(speaking.qwen).kv,
            use_cache=True,
            output_attentions=True,
        ).attentions
    by_number = dict(zip(speaking.qwen.layers.attending, weights, strict=True))
    expected = sum(by_number[layer][0, :, -1, prompt.newest].sum(dim=0) for layer in glanced_layers([*by_number]))
    np.testing.assert_allclose(feedback.attention, expected / expected.max(), atol=1e-4)


def test_repeated_glances_return_the_same_attention() -> None:
    glance, _ = parts()
    speaking = session()
    first, second = speaking.glance(glance, QUERY), speaking.glance(glance, QUERY)
    np.testing.assert_allclose(second.feedback.attention, first.feedback.attention, atol=1e-5)
    fresh = session()
    fresh.qwen = speaking.qwen
    assert fresh.glance(glance, QUERY).feedback.attention.tolist() == first.feedback.attention.tolist()


def test_a_glance_at_the_last_of_several_frames_keeps_those_before_it() -> None:
    (_, first), (glance, second) = parts(0), parts(1, media_s=1.0)
    speaking, fresh = session(), session()
    fresh.qwen = speaking.qwen
    speaking.glance([first, glance], QUERY)
    assert answer_text(speaking, [first, second], QUERY) == answer_text(fresh, [first, second], QUERY)
    question = len(speaking.prompts.question(QUERY)) + len(speaking.prompts.ids.frame_close)
    assert speaking.last.work.prefilled_tokens == 7 + question


@pytest.mark.parametrize("encode", ["full", "prune", "weighted"])
def test_a_glance_needs_the_overview_only_for_every_encoding_of_the_answer(encode: Any) -> None:
    glance, packet = parts()
    assert session(encode=encode).glance(glance, QUERY).work.tokens_used == 12
    with pytest.raises(OptionError, match="needs the whole frame"):
        answer_text(session(encode=encode), packet, QUERY)


def test_a_packet_without_an_overview_is_refused() -> None:
    _, packet = parts()
    for wrong in (packet, packet.chosen_part(), []):
        with pytest.raises(OptionError, match="a glance needs an overview"):
            session().glance(wrong, QUERY)


def test_a_model_whose_attention_cannot_be_read_is_refused_in_one_line() -> None:
    glance, _ = parts()
    speaking = session()
    assert speaking.can_glance
    for layer in speaking.qwen.language_model.layers:
        layer.self_attn.q_proj_of_its_own = layer.self_attn.q_proj
        del layer.self_attn.q_proj
    speaking = AnswerSession(speaking.qwen)
    assert not speaking.can_glance
    with pytest.raises(
        ModelError, match=r"cannot be read in layer 0, so it cannot glance; turn glances off \(glance=F"
    ):
        speaking.glance(glance, QUERY)


def test_nan_in_the_attention_is_reported_and_empties_the_cache() -> None:
    glance, packet = parts()
    speaking = session()
    norm = speaking.qwen.language_model.layers[0].self_attn.q_norm
    weight = norm.weight.data.clone()
    norm.weight.data.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="attention holds NaN"):
        speaking.glance(glance, QUERY)
    norm.weight.data.copy_(weight)
    fresh = session()
    fresh.qwen = speaking.qwen
    assert answer_text(speaking, packet, QUERY) == answer_text(fresh, packet, QUERY)


def test_a_question_that_is_too_long_is_refused() -> None:
    glance, _ = parts()
    with pytest.raises(ContextLengthError):
        session().glance(glance, "cat " * 5000)


def test_incremental_encoding_has_a_separate_cache_for_overviews() -> None:
    """A region may be in both parts; each part recognises it separately."""
    _, packet = parts()
    first = replace(
        packet,
        regions=np.concatenate([packet.regions, packet.regions[:1]]),
        relevance=np.ones(20, np.float32),
        pixels=np.concatenate([packet.pixels, packet.pixels[:1]]),
    )
    speaking = session(encode="incremental")
    answer_text(speaking, first, QUERY)
    assert (speaking.last.vision.regions, speaking.last.vision.encoded) == (20, 20)
    second = replace(first, stamp=FrameStamp(1, 0, 0, epoch=1))
    speaking.prompts.cache.reset()
    answer_text(speaking, second, QUERY)
    stats = speaking.last.vision
    assert (stats.regions, stats.encoded - stats.refreshed, stats.held_regions) == (20, 0, 20)
