"""Groups of pictures in the cache: appended and removed tokens, compared with one prefill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.errors import ContextLengthError, OptionError
from arr_coc.qwen.cache import empty_cache
from arr_coc.qwen.decode import PromptPart, prefill
from arr_coc.qwen.encoding import EncodedFrame, encode_packet
from arr_coc.qwen.flops import Costs
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.preprocess import grid_regions
from arr_coc.qwen.session import AnswerSession, SlotQuestion
from arr_coc.qwen.vision import VisualTokens
from arr_coc.types import FrameStamp, GroupPlace, TileGrid, TokenPacket
from tests.support.models import ATTENDING, FAMILIES, tiny_qwen

GRID = TileGrid.of(96, 128)
QUERY, OTHER_QUERY = "Is the cat sleeping?", "Say what happens."


def frame(
    index: int, tiles: list[int], superseded: list[int] | None = None, *, group: int = 1, at: int | None = None
) -> TokenPacket:
    """Return frame `at` (or `index`) of a group with these tiles of the 3 x 4 grid."""
    regions = grid_regions(GRID)[tiles].numpy().astype(np.int32)
    pixels = np.random.default_rng(index).integers(0, 256, (len(tiles), 3, 32, 32), dtype=np.uint8)
    stamp = FrameStamp(index, index * 10**9, 0, epoch=group)
    place = GroupPlace(group, index if at is None else at)
    superseded_numbers = np.array(superseded or [], np.int32)
    return TokenPacket(
        stamp, GRID, regions, np.ones(len(tiles), np.float32), pixels, place=place, superseded=superseded_numbers
    )


GROUP = [frame(0, [0, 1, 2, 3]), frame(1, [1, 5], [1]), frame(2, [2, 6, 7], [2])]
"""Tiles 1 and 2 are shown again, and then the group shows tiles 0, 3, 1, 5, 2, 6, 7."""

NOTHING_NEW = frame(3, [])


def session(family: str = "qwen3_vl", **options: object) -> AnswerSession:
    return AnswerSession(tiny_qwen(family), AnswerOptions(decoding=Decoding(max_tokens=4), **options))  # type: ignore[arg-type]


def answer_text(speaking: AnswerSession, packets: list[TokenPacket], query: str = QUERY) -> str:
    return "".join(speaking.answer(packets, query))


def next_logits(speaking: AnswerSession, packets: list[TokenPacket], query: str) -> torch.Tensor:
    """Return the logits after a prompt, which stays in the cache as after an answer."""
    prompts = speaking.slots[0].prompts
    prompt = prompts.make(packets, query, lambda: None)
    return prefill(speaking.qwen, prompt.part, prompts.cache)


def reference_logits(speaking: AnswerSession, packets: list[TokenPacket], query: str) -> torch.Tensor:
    """Return the logits of one prefill of all tokens ever appended, with a mask that hides superseded tokens from later
    ones; with recurrent layers, which nothing can be hidden from, of the tokens that remain."""
    qwen, prompts = speaking.qwen, speaking.slots[0].prompts
    part = PromptPart(qwen, 0, 0)
    part.text(prompts.ids.head)
    part.text(prompts.opening(packets[0], timed=False))
    first, hidden, frames = (
        part.tokens,
        [],
        [encode_packet(qwen, packet, "sparse") for packet in packets if len(packet.regions)],
    )
    if qwen.family.recurrent:
        superseded = [number for packet in packets for number in packet.superseded]
        rows = [row for row in range(sum(len(packet.regions) for packet in packets)) if row not in superseded]
        frames = [
            EncodedFrame(
                VisualTokens(torch.cat([frame.tokens.embeds for frame in frames], dim=1)[:, rows]),
                torch.cat([frame.regions for frame in frames], dim=1)[:, rows],
                GRID,
            )
        ]
    for encoded in frames:
        part.visual(encoded)
    tokens = 0
    for packet in packets:
        hidden += [(first + tokens, first + number) for number in packet.superseded]
        tokens += len(packet.regions)
    part.end_frame(GRID)
    part.text([*prompts.ids.frame_close, *prompts.question(query)])
    if qwen.family.recurrent:
        return prefill(qwen, part, empty_cache(qwen))
    mask = torch.full((part.tokens, part.tokens), -torch.inf).triu(1)
    for since, row in hidden:
        mask[since:, row] = -torch.inf
    states = qwen.language_model(
        **part.inputs(), attention_mask=mask[None, None], past_key_values=empty_cache(qwen).kv, use_cache=True
    ).last_hidden_state
    return qwen.model.lm_head(states[0, -1])


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_equal_those_of_one_prefill(family: str) -> None:
    speaking = session(family)
    for count, query in ((1, QUERY), (2, QUERY), (2, OTHER_QUERY), (3, QUERY), (4, OTHER_QUERY)):
        packets = [*GROUP, NOTHING_NEW][:count]
        logits = next_logits(speaking, packets, query)
        assert torch.allclose(logits, reference_logits(speaking, packets, query), atol=1e-5)


@torch.inference_mode()
def test_in_bfloat16_a_memory_is_as_near_to_float32_as_one_prefill() -> None:
    errors = []
    for query in (QUERY, OTHER_QUERY, "two green squares"):
        exact = reference_logits(session(), GROUP, query)
        half = session()
        half.qwen.model.to(torch.bfloat16)
        for count in (1, 2, 3):
            logits = next_logits(half, GROUP[:count], query)
        one_prefill = reference_logits(half, GROUP, query)
        errors.append([(half_logits.float() - exact).norm().item() for half_logits in (logits, one_prefill)])
    of_memory, of_one_prefill = (sum(column) for column in zip(*errors, strict=True))
    assert 0 < of_memory < 1.5 * of_one_prefill


def test_only_new_tokens_are_prefilled() -> None:
    speaking = session()
    ids = speaking.prompts.ids
    question = len(speaking.prompts.question(QUERY)) + len(ids.frame_close)
    head = len(ids.head) + len(speaking.prompts.opening(GROUP[0], timed=False))
    figures = []
    for count in (1, 2, 2, 3, 4):
        answer_text(speaking, [*GROUP, NOTHING_NEW][:count])
        last = speaking.last
        figures.append(
            (last.work.prefilled_tokens, last.work.appended_tokens, last.work.memory_tokens, last.work.tokens_used)
        )
    assert figures == [
        (head + 4 + question, 4, head + 4, 4),
        (2 + question, 2, head + 5, 5),
        (question, 0, head + 5, 5),
        (3 + question, 3, head + 7, 7),
        (question, 0, head + 7, 7),
    ]
    assert [stamp.frame_index for stamp in speaking.last.stamps] == [3]


def test_the_work_of_a_memory_is_what_is_appended() -> None:
    speaking, costs = session(), Costs(tiny_qwen())
    answer_text(speaking, GROUP[:2])
    answer_text(speaking, GROUP)
    last = speaking.last
    before = last.work.memory_tokens - last.work.appended_tokens
    assert last.work.flops == costs.answer_after(before, last.work.prefilled_tokens, 3, 4).total
    assert last.work.full_flops > last.work.flops
    answer_text(speaking, [*GROUP, NOTHING_NEW])
    assert speaking.last.work.flops < last.work.flops


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_an_answer_never_depends_on_earlier_questions(family: str, data: st.DataObject) -> None:
    """Groups grow, are asked about twice, cancelled, replaced, and interrupted by other pictures."""
    speaking, group, number, numbers, count = session(family), [], 0, {}, 0
    for step in range(data.draw(st.integers(2, 6))):
        if not group or data.draw(st.booleans(), label="new group"):
            group, number, numbers, count = [], number + 1, {}, 0
        tiles = data.draw(st.lists(st.integers(0, 11), unique=True, min_size=0 if group else 1, max_size=6))
        vanished = data.draw(st.lists(st.sampled_from(sorted({*numbers} - {*tiles}) or [-1]), unique=True, max_size=2))
        superseded_tiles = [tile for tile in (*tiles, *vanished) if tile in numbers]
        if not tiles and len(superseded_tiles) == len(numbers):
            superseded_tiles = []
        packet = frame(step, tiles, [numbers[tile] for tile in superseded_tiles], group=number, at=len(group))
        packets, query = [*group, packet], data.draw(st.sampled_from([QUERY, OTHER_QUERY]))
        if data.draw(st.booleans(), label="cancelled before"):
            next(pieces := speaking.answer(packets, OTHER_QUERY), None)
            pieces.close()
        if data.draw(st.booleans(), label="another picture before"):
            answer_text(speaking, [replace(frame(90, [0, 4]), place=None)])
        assert answer_text(speaking, packets, query) == answer_text(session(family), packets, query)
        memory = speaking.slots[0].prompts.cache.marks[1].key
        for tile in superseded_tiles:
            del numbers[tile]
        numbers |= {tile: count + index for index, tile in enumerate(tiles)}
        count += len(tiles)
        assert sorted(memory.numbers) == sorted(numbers.values())
        assert (
            len({tuple(region) for region in memory.regions.tolist()}) == len(numbers) == speaking.last.work.tokens_used
        )
        if tiles or superseded_tiles:
            group = packets


def test_a_memory_in_one_slot_does_not_change_another() -> None:
    several = AnswerSession(tiny_qwen(), AnswerOptions(decoding=Decoding(max_tokens=4)), slots=2)
    for count in (1, 2, 3):
        questions = [
            SlotQuestion(0, GROUP[:count], QUERY, vision=several.slots[0].vision),
            SlotQuestion(1, replace(frame(80 + count, [0, 3]), place=None), OTHER_QUERY),
        ]
        answers = several.ask(questions)
        while not all(answer.has_ended for answer in answers):
            several.step()
        reference = session()
        assert answers[0].result is not None
        assert answers[0].result.text == answer_text(reference, GROUP[:count])
        assert answers[0].result.work.memory_tokens == reference.last.work.memory_tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_new_regions_are_encoded_alone(family: str) -> None:
    """No key of an earlier frame of the group is attended to."""
    packet = frame(1, [1, 5, 6])
    speaking = session(family)
    answer_text(speaking, [GROUP[0], packet])
    memory = speaking.prompts.memory
    assert memory is not None
    assert memory.regions[4:].tolist() == packet.regions.tolist()
    reference = encode_packet(tiny_qwen(family), replace(packet, place=None), "sparse")
    assert torch.equal(memory.embeds[4:], reference.tokens.embeds[0])


def test_feedback_covers_all_that_the_memory_shows() -> None:
    speaking = session()
    answer_text(speaking, [*GROUP, NOTHING_NEW])
    feedback = speaking.last.feedback
    assert feedback is not None
    tiles = [row * 4 + col for _, row, col in feedback.regions.tolist()]
    assert sorted(tiles) == [0, 1, 2, 3, 5, 6, 7]
    assert feedback.stamp == NOTHING_NEW.stamp
    assert len(feedback.attention) == len(feedback.similarity) == 7


def test_a_glance_at_a_memory_needs_no_overview_and_keeps_it() -> None:
    speaking = session()
    answer_text(speaking, GROUP[:2])
    result = speaking.glance([*GROUP[:2], frame(2, [])], OTHER_QUERY)
    question = len(speaking.prompts.question(OTHER_QUERY)) + len(speaking.prompts.ids.frame_close)
    assert (result.work.tokens_used, result.work.prefilled_tokens) == (0, question)
    assert len(result.feedback.regions) == 5
    answer_text(speaking, GROUP)
    assert speaking.last.work.appended_tokens == 3


def video(count: int, frames: int = 2, *, first: int = 0) -> list[TokenPacket]:
    """Return whole frames of a group that shows its newest `frames` frames."""
    tiles = [[index % 12, (index + 5) % 12, *([11] if index % 3 == 0 else [])] for index in range(first, first + count)]
    packets = [frame(index, sorted({*tiles_of_frame}), at=index) for index, tiles_of_frame in enumerate(tiles, first)]
    return [replace(packet, place=replace(packet.place, frames=frames)) for packet in packets]  # type: ignore[type-var]


def stock_logits(speaking: AnswerSession, packets: list[TokenPacket], query: str) -> torch.Tensor:
    """Return the logits of several frames in one prompt, without a cache."""
    return next_logits(
        AnswerSession(speaking.qwen, speaking.options), [replace(packet, place=None) for packet in packets], query
    )


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_the_newest_frames_are_read_as_a_video(family: str) -> None:
    """Until the first frame leaves, and each time that all frames are read afresh."""
    speaking, frames = session(family), video(18)
    for count in range(1, 18):
        logits = next_logits(speaking, frames[:count], QUERY)
        if count in (2, 9, 17) or (speaking.qwen.family.recurrent and count > 1):
            assert torch.allclose(logits, stock_logits(speaking, frames[max(count - 2, 0) : count], QUERY), atol=1e-5)
        assert speaking.slots[0].prompts.cache.marks[1].key.visual_tokens == sum(
            len(packet.regions) for packet in frames[max(count - 2, 0) : count]
        )


@pytest.mark.parametrize("family", ATTENDING)
@torch.inference_mode()
def test_later_frames_do_not_attend_to_a_removed_frame(family: str) -> None:
    """Logits equal those of one prefill in which tokens after the third frame do not attend to the first."""
    speaking, frames, parts = session(family), video(4, 3), []
    for count in range(1, 5):
        logits = next_logits(speaking, frames[:count], QUERY)
    qwen, prompts = speaking.qwen, speaking.prompts
    part = PromptPart(qwen, 0, 0)
    part.text(prompts.ids.head)
    for packet in frames:
        begin = part.tokens
        part.text(prompts.opening(packet, timed=True))
        part.frame(encode_packet(qwen, packet, "sparse"))
        part.text(prompts.ids.frame_close)
        parts.append(slice(begin, part.tokens))
    part.text(prompts.question(QUERY))
    mask = torch.full((part.tokens, part.tokens), -torch.inf).triu(1)
    mask[parts[3].start :, parts[0]] = -torch.inf
    states = qwen.language_model(
        **part.inputs(), attention_mask=mask[None, None], past_key_values=empty_cache(qwen).kv, use_cache=True
    ).last_hidden_state
    assert torch.allclose(logits, qwen.model.lm_head(states[0, -1]), atol=1e-5)


def test_only_the_newest_frame_is_prefilled() -> None:
    speaking, frames = session(), video(8, 3)
    question = len(speaking.prompts.question(QUERY))
    around = len(speaking.prompts.opening(frames[0], timed=True)) + len(speaking.prompts.ids.frame_close)
    for count in range(1, 7):
        answer_text(speaking, frames[:count])
        last, tokens = speaking.last, len(frames[count - 1].regions)
        head = len(speaking.prompts.ids.head) if count == 1 else 0
        assert (last.work.prefilled_tokens, last.work.appended_tokens) == (head + around + tokens + question, tokens)
        assert [stamp.frame_index for stamp in last.stamps] == list(range(max(count - 3, 0), count))
        assert last.feedback is not None
        assert last.feedback.regions.tolist() == frames[count - 1].regions.tolist()
    answer_text(speaking, [*frames[:6], video(1, 3, first=6)[0]._part(slice(0), 0)], OTHER_QUERY)
    assert speaking.last.work.appended_tokens == 0
    assert speaking.last.work.prefilled_tokens == len(speaking.prompts.question(OTHER_QUERY))
    assert [stamp.frame_index for stamp in speaking.last.stamps] == [3, 4, 6]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_frames_of_a_video_do_not_depend_on_earlier_questions(data: st.DataObject) -> None:
    """A new session with all packets of the group gives the same answer."""
    frames = data.draw(st.integers(2, 4))
    speaking, packets = session(), video(24, frames)
    for count in data.draw(st.lists(st.integers(1, 24), unique=True, min_size=1, max_size=6).map(sorted)):
        if data.draw(st.booleans(), label="cancelled before"):
            next(pieces := speaking.answer(packets[:count], OTHER_QUERY), None)
            pieces.close()
        if data.draw(st.booleans(), label="another picture before"):
            answer_text(speaking, [replace(frame(90, [0, 4]), place=None)])
        place = packets[count - 1].place
        assert place is not None
        assert answer_text(speaking, packets[:count]) == answer_text(session(), packets[place.first : count])


def test_a_group_without_a_token_is_refused() -> None:
    with pytest.raises(OptionError, match="begins with a key frame"):
        answer_text(session(), [frame(0, [])])


def test_a_group_beyond_the_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    speaking = session()
    limit = speaking.prompts.other_tokens(QUERY) + 6
    monkeypatch.setattr(type(speaking.qwen), "max_context_tokens", limit)
    answer_text(speaking, GROUP[:1])
    with pytest.raises(ContextLengthError, match="lower the budget"):
        answer_text(speaking, GROUP)


@pytest.mark.parametrize("group", [[*GROUP, NOTHING_NEW], video(9)], ids=["picture", "frames"])
def test_the_work_does_not_count_tokens_read_again_after_a_loss(group: list[TokenPacket]) -> None:
    speaking = session()
    for count in range(1, len(group) + 1):
        for query in (QUERY, OTHER_QUERY):
            fresh = session()
            assert answer_text(speaking, group[:count], query) == answer_text(fresh, group[:count], query)
            assert speaking.last.operations == fresh.last.operations
            assert speaking.last.work.kept_bytes == fresh.last.work.kept_bytes
            assert speaking.last.work.prefilled_tokens <= fresh.last.work.prefilled_tokens


def test_frames_of_another_time_are_read_again() -> None:
    speaking, frames = session(), video(2)
    answer_text(speaking, frames)
    later_frames = [
        replace(packet, stamp=replace(packet.stamp, media_ns=packet.stamp.media_ns + 10**12)) for packet in frames
    ]
    assert answer_text(speaking, later_frames) == answer_text(session(), later_frames)
    assert speaking.last.work.appended_tokens > 0
    assert speaking.last.stamps == tuple(packet.stamp for packet in later_frames)
