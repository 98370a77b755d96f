"""Groups of pictures in an answer server, between it and its clients, and in a Qwen model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arr_coc.errors import ContextLengthError, OptionError
from arr_coc.qwen.batching import slots as slots_module
from arr_coc.types import GROUP_GROWTH, NS_PER_S, GroupPlace, Question
from stream.answer.memory import GroupMemory
from stream.answer.model import CONFIGURED, AnswerStats, ClientQuestion, ask_alone, load_answer_model
from stream.answer.qwen import QwenAnswerModel
from stream.config import AnswerConfig, Config
from stream.errors import TransportError
from tests.support.events import make_group_packet
from tests.support.models import tiny_folder

A, B, C = b"a", b"b", b"c"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


def seconds(memory: GroupMemory, client: bytes, *place: int) -> list[int]:
    """Frames before a place."""
    return [packet.stamp.frame_index for packet in memory.before(client, GroupPlace(*place))]


def test_a_group_grows_by_what_is_new_and_each_client_has_its_own() -> None:
    memory = GroupMemory(100)
    assert memory.next_place(A) is None
    for number in range(3):
        memory.add(A, make_group_packet((1, number), second=number))
        memory.add(B, make_group_packet((7, number), second=10 + number))
    assert (memory.next_place(A), memory.next_place(B), memory.next_place(C)) == (
        GroupPlace(1, 3),
        GroupPlace(7, 3),
        None,
    )
    assert (seconds(memory, A, 1, 3), seconds(memory, B, 7, 2)) == ([0, 1, 2], [10, 11])
    assert (memory.groups, memory.visual_tokens) == (2, 12)
    memory.add(A, make_group_packet((2, 0), second=5))
    assert (memory.next_place(A), seconds(memory, A, 2, 1)) == (GroupPlace(2, 1), [5])
    memory.drop(A)
    assert (memory.next_place(A), memory.groups, memory.evictions) == (None, 1, 0)
    memory.evict(B)
    memory.evict(B)
    assert (memory.next_place(B), memory.groups, memory.evictions) == (None, 0, 1)


def test_a_second_packet_in_a_place_replaces_the_first() -> None:
    memory = GroupMemory(100)
    for second, number in enumerate((0, 1, 1)):
        memory.add(A, make_group_packet((1, number), second=second))
    assert (memory.next_place(A), seconds(memory, A, 1, 2)) == (GroupPlace(1, 2), [0, 2])


def test_a_frame_with_nothing_new_is_not_kept() -> None:
    memory = GroupMemory(100)
    memory.add(A, make_group_packet((1, 0)))
    memory.add(A, make_group_packet((1, 1), tokens=0, second=1))
    assert (memory.next_place(A), seconds(memory, A, 1, 1)) == (GroupPlace(1, 1), [0])


def test_packets_that_the_memory_lacks_may_be_added_along() -> None:
    memory = GroupMemory(100)
    packets = [make_group_packet((1, number), second=number) for number in range(5)]
    memory.add(A, packets[2], packets[:2])
    assert (memory.next_place(A), seconds(memory, A, 1, 3)) == (GroupPlace(1, 3), [0, 1, 2])
    memory.add(A, packets[4], packets[3:4])
    assert seconds(memory, A, 1, 5) == [0, 1, 2, 3, 4]
    memory.add(A, packets[1], packets[:1])
    assert memory.next_place(A) == GroupPlace(1, 2)


def test_only_the_frames_that_a_group_is_read_from_are_kept() -> None:
    """A group of two frames is read anew after every eight."""
    memory, packets = GroupMemory(4), [make_group_packet((1, number, 2), second=number) for number in range(30)]
    for packet in packets[:17]:
        memory.add(A, packet)
        assert memory.visual_tokens <= 4
    assert (memory.next_place(A), seconds(memory, A, 1, 17, 2)) == (GroupPlace(1, 17, 2), [15, 16])
    memory.add(A, packets[17])
    memory.add(A, make_group_packet((1, 18, 2), tokens=0, second=18))
    assert seconds(memory, A, 1, 18, 2) == [15, 16, 17]
    other = GroupMemory(4)
    other.add(A, packets[20], packets[15:20])
    assert seconds(other, A, 1, 21, 2) == list(range(15, 21))
    with pytest.raises(TransportError, match="builds on 14 frames"):
        GroupMemory(4).add(A, packets[20], packets[14:20])
    with pytest.raises(TransportError, match="supersedes tokens"):
        other.add(A, replace(packets[21], superseded=np.zeros(1, np.int32)))


def test_a_client_cannot_make_a_memory_grow() -> None:
    """Not by superseding a token twice, endless growing and shrinking, or large frames before small ones."""
    memory = GroupMemory(8)
    memory.add(A, make_group_packet((1, 0), tokens=4))
    with pytest.raises(TransportError, match="supersedes tokens"):
        memory.add(A, replace(make_group_packet((1, 1), tokens=2), superseded=np.zeros(2, np.int32)))
    for number in range(1, 2 * GROUP_GROWTH):
        superseded = np.arange(4 * number - 4, 4 * number, dtype=np.int32)
        memory.add(A, replace(make_group_packet((1, number), tokens=4), superseded=superseded))
    with pytest.raises(TransportError, match="was given 36 tokens to show 8"):
        memory.add(A, replace(make_group_packet((1, 8), tokens=4), superseded=np.arange(28, 32, dtype=np.int32)))
    large, small = ([make_group_packet((1, n, 2), tokens=tokens, second=n) for n in range(9)] for tokens in (4, 1))
    with pytest.raises(TransportError, match="shows 8 tokens, of at most 4"):
        GroupMemory(4).add(A, small[3], [*large[:2], small[2]])
    memory = GroupMemory(8)
    for packet in large:
        memory.add(A, packet)
    with pytest.raises(TransportError, match="dropped"):
        memory.add(A, make_group_packet((1, 5, 2), second=5))


@pytest.mark.parametrize("place", [(1, 2), (1, 9), (2, 1)])
def test_a_frame_that_builds_on_what_is_not_kept_is_refused(place: tuple[int, int]) -> None:
    memory = GroupMemory(100)
    memory.add(A, make_group_packet((1, 0)))
    with pytest.raises(
        TransportError, match=r"builds on \d frames?, and the memory has GroupPlace\(group=1, frame=1, frames=1\)"
    ):
        memory.add(A, make_group_packet(place))
    with pytest.raises(TransportError, match="the memory has None"):
        memory.add(B, make_group_packet(place))
    assert (memory.next_place(A), memory.next_place(B)) == (GroupPlace(1, 1), None)


def test_a_group_never_exceeds_its_tokens_nor_changes_its_size() -> None:
    memory = GroupMemory(10)
    memory.add(A, make_group_packet((1, 0), tokens=6))
    with pytest.raises(TransportError, match="shows 11 tokens, of at most 10"):
        memory.add(A, make_group_packet((1, 1), tokens=5))
    with pytest.raises(TransportError, match="supersedes tokens that its group of pictures does not have"):
        memory.add(A, replace(make_group_packet((1, 1), tokens=5), superseded=np.array([6], np.int32)))
    memory.add(A, replace(make_group_packet((1, 1), tokens=5), superseded=np.array([5], np.int32)))
    assert memory.visual_tokens == 10
    with pytest.raises(TransportError, match="have one size"):
        memory.add(A, make_group_packet((1, 2), tokens=1, side_px=96))
    assert memory.next_place(A) == GroupPlace(1, 2)


def load(folder: Path, slots: int = 1, tokens: int = 200, frames: int = 1, **options: object) -> QwenAnswerModel:
    memory = {"enabled": True, "tokens": tokens, "frames": frames}
    answer = {"model": str(folder), "max_tokens": 4, "slots": slots, "memory": memory, **options}
    model = load_answer_model(CONFIGURED, Config(answer=AnswerConfig.model_validate(answer)))
    assert isinstance(model, QwenAnswerModel)
    return model


def ask(model: QwenAnswerModel, client: bytes, place: tuple[int, int], tokens: int = 2) -> AnswerStats:
    """Statistics of an answer about a group with a packet at this place, asked as the server asks it."""
    assert model.memory is not None
    packet = make_group_packet(place, tokens, second=place[1])
    rows = np.arange(tokens, dtype=np.int32)
    packet.regions[:] = np.stack([np.zeros_like(rows), rows // 2, rows % 2], 1)
    model.hold(client)
    model.memory.add(client, packet)
    question = ClientQuestion(client, packet, Question("what?"))
    ask_alone(model, question)
    assert question.stats is not None
    return question.stats


@pytest.mark.parametrize("encode", ["sparse", "incremental"])
def test_an_answer_costs_what_is_new(folder: Path, encode: str) -> None:
    model = load(folder, encode=encode)
    first, second, third = (ask(model, A, (1, number), tokens) for number, tokens in ((0, 4), (1, 1), (2, 0)))
    assert [stats.work.appended_tokens for stats in (first, second, third)] == [4, 1, 0]
    assert [stats.work.tokens_used for stats in (first, second, third)] == [4, 5, 5]
    assert first.work.prefilled_tokens > second.work.prefilled_tokens > third.work.prefilled_tokens
    assert third.work.memory_tokens == second.work.memory_tokens > first.work.memory_tokens > 4
    assert third.feedback is not None
    assert third.feedback.stamp.frame_index == 2


def test_the_memory_used_least_recently_goes_first_and_is_counted(folder: Path) -> None:
    model = load(folder, slots=2)
    memory = model.memory
    assert memory is not None
    for client in (A, B, A):
        ask(model, client, (1, 0))
    ask(model, C, (1, 0))
    assert (memory.next_place(A), memory.next_place(B), memory.next_place(C)) == (
        GroupPlace(1, 1),
        None,
        GroupPlace(1, 1),
    )
    assert (memory.evictions, memory.groups) == (1, 2)
    ask(model, A, (1, 1))
    ask(model, B, (2, 0))
    assert (memory.next_place(A), memory.next_place(C), memory.evictions) == (GroupPlace(1, 2), None, 2)
    model.drop_client(A)
    assert (memory.next_place(A), memory.evictions) == (None, 2)


def room(model: QwenAnswerModel, frames: int = 1) -> int:
    """Visual tokens that fit the context beside all else."""
    prompts = model._session.prompts
    return model._session.qwen.max_context_tokens - prompts.other_tokens("") - prompts.group_tokens(frames)


@pytest.mark.parametrize("frames", [1, 4])
def test_superseded_tokens_of_recurrent_layers_take_no_context(tmp_path: Path, frames: int) -> None:
    folder = tiny_folder(tmp_path / "tiny", "qwen3_5")
    most = room(load(folder, frames=frames), frames)
    model = load(folder, tokens=most, frames=frames)
    model.embed_query("")
    with pytest.raises(ContextLengthError, match="too many beside"):
        model.embed_query("what is there to be seen?")
    with pytest.raises(OptionError, match=rf"set answer.memory.tokens to {most} or less"):
        load(folder, tokens=most + 1, frames=frames)


def test_the_tokens_around_a_group_are_those_of_its_prompt(folder: Path) -> None:
    model = load(folder, tokens=200, frames=3)
    prompts = model._session.prompts
    packets = [make_group_packet((1, number, 3), 2, second=number) for number in range(3)]
    packets = [
        replace(packet, stamp=replace(packet.stamp, media_ns=99_999 * NS_PER_S + index))
        for index, packet in enumerate(packets)
    ]
    prompt = prompts.make(packets, "", lambda: None)
    answer_tokens = prompts.options.decoding.max_tokens
    assert prompt.part.tokens == 6 + prompts.group_tokens(3) + prompts.other_tokens("") - answer_tokens


def test_a_group_that_exceeds_the_context_is_refused_with_the_largest_that_fits(folder: Path) -> None:
    model = load(folder)
    context, most = model._session.qwen.max_context_tokens, room(model)
    assert load(folder, tokens=most).memory is not None
    with pytest.raises(
        OptionError,
        match=rf"answer.memory.tokens = {context} does not fit tiny: its context has {context} tokens, .*"
        rf"; set answer.memory.tokens to {most} or less, or give --no-memory",
    ):
        load(folder, tokens=context)


def test_a_question_must_fit_beside_the_memory(folder: Path) -> None:
    model = load(folder, tokens=room(load(folder)))
    with pytest.raises(
        ContextLengthError, match=r"too many beside answer.memory.tokens = \d+ in a context of \d+; ask a"
    ):
        model.embed_query("what is there to be seen?")


def test_several_slots_count_their_memories(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "free_bytes", lambda device: 1_000_000)
    with pytest.raises(OptionError, match="3 slots of 1260 tokens need"):
        load(folder, slots=3, tokens=1000)
