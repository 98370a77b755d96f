"""Packets, embeddings and feedback in messages: equal after decoding, refused if invalid."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from arr_coc.types import Feedback, FramePacket, FrameStamp, GroupPlace, TileGrid, TokenPacket, Work
from stream.errors import TransportError
from stream.protocol.codec import (
    Array,
    check_feedback,
    checked_feedback,
    embedding_of,
    feedback_arrays,
    feedback_of,
    frame_message,
    frame_packet,
    glance_message,
    idle_message,
    specs_of,
    token_message,
    token_packet,
    token_packets,
)
from stream.protocol.messages import (
    AnswerReply,
    ArraySpec,
    EarlierFrame,
    Embedded,
    IdlePacketMessage,
    PixelPlace,
    TokenPacketMessage,
    decode,
    encode,
)
from stream.untrusted import EARLIER_MAX
from tests.support.events import QUESTION

STAMP = FrameStamp(7, 280_000_000, 123_456_789, 5)
GRID = TileGrid.of(70, 100)


def tokens(count: int = 5) -> TokenPacket:
    rng = np.random.default_rng(0)
    return TokenPacket(
        STAMP,
        GRID,
        rng.integers(0, (2, 2, 2), (count, 3), dtype=np.int32),
        rng.random(count, dtype=np.float32),
        rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8),
    )


def whole_frame() -> FramePacket:
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (GRID.padded_height_px, GRID.padded_width_px, 3), dtype=np.uint8)
    return FramePacket(STAMP, GRID, tokens().regions, rng.random(GRID.shape, dtype=np.float32), image)


def wire(arrays: Sequence[Array]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def assert_same(actual: object, expected: object) -> None:
    for field in dataclasses.fields(expected):  # type: ignore[arg-type]
        np.testing.assert_array_equal(getattr(actual, field.name), getattr(expected, field.name))


@pytest.mark.parametrize(
    "packet",
    [
        tokens(0),
        tokens(1),
        tokens(),
        dataclasses.replace(tokens(), overview=1),
        dataclasses.replace(tokens(), overview=5),
        dataclasses.replace(tokens(8), regions=np.array([(code, 0, 0) for code in range(6, 14)], np.int32)),
    ],
    ids=["empty", "one", "five", "with an overview", "an overview", "wide and tall"],
)
def test_a_token_packet_survives_the_way(packet: TokenPacket) -> None:
    message, arrays = token_message(3, 9, packet, QUESTION)
    assert (message.answer, message.turn) == (3, 9)
    assert_same(token_packet(message, wire(arrays)), packet)


def test_a_glance_is_an_overview_and_nothing_else() -> None:
    packet = dataclasses.replace(tokens(), overview=5)
    message, arrays = glance_message(3, 9, packet, "what?")
    assert (message.glance, message.turn) == (3, 9)
    assert_same(token_packet(message, wire(arrays)), packet)
    message, arrays = glance_message(0, 0, tokens(0), "what?")
    with pytest.raises(TransportError, match="GlancePacketMessage holds no overview"):
        token_packet(message, wire(arrays))


@pytest.mark.parametrize("earlier_count", [0, 2])
@pytest.mark.parametrize("packet", [tokens(), tokens(0), dataclasses.replace(tokens(), overview=2)])
def test_an_idle_packet_survives_the_way(packet: TokenPacket, earlier_count: int) -> None:
    """With the packets before it that its server lacks."""
    packets = [
        dataclasses.replace(tokens(3 + number), place=GroupPlace(1, number), overview=number)
        for number in range(earlier_count)
    ]
    superseded = np.arange(2 * earlier_count, dtype=np.int32)
    packets.append(dataclasses.replace(packet, overview=0, place=GroupPlace(1, earlier_count), superseded=superseded))
    message, arrays = idle_message(7, packets[-1], earlier_packets=packets[:-1])
    assert (message.number, message.place) == (7, GroupPlace(1, earlier_count))
    decoded = decode(encode(message))
    assert isinstance(decoded, IdlePacketMessage)
    if not earlier_count and not len(packet.regions):
        with pytest.raises(TransportError, match="holds nothing of a frame that others"):
            token_packets(decoded, wire(arrays))
        return
    for actual, expected in zip(token_packets(decoded, wire(arrays)), packets, strict=True):
        assert_same(actual, expected)


def test_pixels_of_an_idle_packet_may_stay_on_their_device() -> None:
    packet = dataclasses.replace(tokens(), place=GroupPlace(1, 3))
    message, arrays = idle_message(7, packet, pixels_at=PixelPlace(3))
    assert len(arrays) == 3
    pixels = torch.from_numpy(packet.host_pixels)
    (actual,) = token_packets(message, wire(arrays), lambda place, count: pixels[: (place.number == 3) * count])
    assert_same(actual, packet)


def test_an_overview_of_more_regions_than_there_are_is_refused() -> None:
    message, arrays = token_message(0, 0, dataclasses.replace(tokens(), overview=6), QUESTION)
    with pytest.raises(TransportError, match="holds 5 regions, and says that 6 of them are an overview"):
        token_packet(message, wire(arrays))


def test_arrays_share_the_memory_that_they_came_in_and_cannot_be_written() -> None:
    message, arrays = token_message(0, 0, tokens(), QUESTION)
    parts = [bytearray(part) for part in wire(arrays)]
    packet = token_packet(message, [memoryview(part) for part in parts])
    parts[2][0] ^= 255
    assert packet.pixels.flat[0] == parts[2][0]
    with pytest.raises(ValueError, match="read-only"):
        packet.pixels[0] = 0


def test_a_frame_packet_survives_the_way() -> None:
    message, arrays = frame_message(3, 9, whole_frame(), QUESTION, in_snapshot=False)
    assert (message.answer, message.turn) == (3, 9)
    assert_same(frame_packet(message, wire(arrays)), whole_frame())


def test_a_frame_in_the_snapshot_leaves_its_image_out_of_the_message() -> None:
    packet = whole_frame()
    message, arrays = frame_message(3, 9, packet, QUESTION, in_snapshot=True)
    assert len(arrays) == 2
    assert_same(frame_packet(message, wire(arrays), packet.image), packet)
    with pytest.raises(TransportError, match="this link has none"):
        frame_packet(message, wire(arrays))


def test_arrays_of_another_size_or_number_than_announced_are_refused() -> None:
    message, arrays = token_message(0, 0, tokens(), QUESTION)
    parts = wire(arrays)
    with pytest.raises(TransportError, match=r"announces uint8\[5, 3, 32, 32\], 15360 bytes, and came with 15359"):
        token_packet(message, [*parts[:2], parts[2][:-1]])
    with pytest.raises(TransportError, match="announces 3 arrays and came with 2"):
        token_packet(message, parts[:2])


@pytest.mark.parametrize(
    "specs",
    [
        (),
        (ArraySpec("int32", (5, 3)), ArraySpec("float32", (5,))),
        (ArraySpec("uint8", (5, 3)), ArraySpec("float32", (5,)), ArraySpec("uint8", (5, 3, 32, 32))),
        (ArraySpec("int32", (5, 4)), ArraySpec("float32", (5,)), ArraySpec("uint8", (5, 3, 32, 32))),
        (ArraySpec("int32", (5, 3)), ArraySpec("float32", (4,)), ArraySpec("uint8", (5, 3, 32, 32))),
        (ArraySpec("int32", (5, 3)), ArraySpec("float32", (5,)), ArraySpec("uint8", (5, 3, 32))),
    ],
)
def test_a_packet_that_announces_other_arrays_is_refused(specs: tuple[ArraySpec, ...]) -> None:
    message, arrays = token_message(0, 0, tokens(), QUESTION)
    with pytest.raises(TransportError, match="TokenPacketMessage must announce the arrays"):
        token_packet(replace(message, arrays=specs), wire(arrays))


def group(*counts: int) -> list[TokenPacket]:
    """Frames of a group of pictures, with `counts` regions; each frame supersedes a token of the one before."""
    packets = [dataclasses.replace(tokens(count), stamp=FrameStamp(at, at, at)) for at, count in enumerate(counts)]
    return [
        dataclasses.replace(packet, place=GroupPlace(3, at), superseded=np.arange(at - 1, at, dtype=np.int32)[:at])
        for at, packet in enumerate(packets)
    ]


@pytest.mark.parametrize("counts", [(4,), (4, 2), (4, 0), (3, 1, 2), (3, 1, 0)])
@pytest.mark.parametrize("missing_frames", [0, 1, 2])
def test_a_packet_of_a_group_brings_the_frames_that_the_server_lacks(
    counts: tuple[int, ...], missing_frames: int
) -> None:
    *before, packet = group(*counts)
    earlier_packets = before[max(0, len(before) - missing_frames) :]
    message, arrays = token_message(3, 9, packet, QUESTION, earlier_packets=earlier_packets)
    assert (message.place, len(message.earlier), len(arrays)) == (packet.place, len(earlier_packets), 4)
    assert len(arrays[0]) == sum(len(other.regions) for other in (*earlier_packets, packet))
    came = token_packets(decode_token(message), wire(arrays))
    assert len(came) == len(earlier_packets) + 1
    for actual, expected in zip(came, (*earlier_packets, packet), strict=True):
        assert_same(actual, expected)


def decode_token(message: TokenPacketMessage) -> TokenPacketMessage:
    came = decode(encode(message))
    assert isinstance(came, TokenPacketMessage)
    return came


def test_an_overview_stays_the_one_of_its_frame() -> None:
    first, packet = group(4, 3)
    first = dataclasses.replace(first, overview=2)
    message, arrays = token_message(0, 0, packet, QUESTION, earlier_packets=[first])
    assert [other.overview for other in token_packets(message, wire(arrays))] == [2, 0]


@pytest.mark.parametrize("count", [0, 2])
def test_a_glance_at_a_group_is_no_overview(count: int) -> None:
    *before, packet = group(4, 1, count)
    message, arrays = glance_message(0, 0, packet, "what?", earlier_packets=before[1:])
    came = token_packets(message, wire(arrays))
    assert [other.place for other in came] == [GroupPlace(3, 1), GroupPlace(3, 2)]
    assert_same(came[-1], packet)


def test_pixels_on_a_device_are_those_of_all_frames_of_a_message() -> None:
    first, packet = group(4, 3)
    pixels = torch.cat([torch.from_numpy(other.host_pixels) for other in (first, packet)])
    message, arrays = token_message(0, 0, packet, QUESTION, pixels_at=PixelPlace(number=1), earlier_packets=[first])
    assert len(arrays) == 3
    came = token_packets(message, wire(arrays), lambda place, count: pixels[:count])
    assert [other.pixels.shape[0] for other in came] == [4, 3]
    assert_same(dataclasses.replace(came[1], pixels=came[1].host_pixels), packet)


@pytest.mark.parametrize(
    ("counts", "changes", "error"),
    [
        ((0,), {}, "holds nothing of a frame that others in its group"),
        ((4, 1), {"earlier": (EarlierFrame(STAMP, 0),)}, "holds nothing of a frame that others in its group"),
        (
            (4, 1),
            {"earlier": (EarlierFrame(STAMP, 4, 0, 2),)},
            "names 1 superseded token, and earlier frames have more",
        ),
        ((4, 1), {"earlier": (EarlierFrame(STAMP, 6),)}, "holds 5 regions, and says that 6 are of earlier frames"),
        ((4, 1), {"earlier": (EarlierFrame(STAMP, 2, 3),)}, "holds 2 regions, and says that 3 of them are an overview"),
        ((4, 1), {"earlier": (EarlierFrame(STAMP, 2),) * 2}, "2 frames cannot come before frame 1 of a group"),
        ((4, 1), {"place": None}, "1 frame cannot come before frame 0 of a group"),
        ((4, 1), {"earlier": (EarlierFrame(FrameStamp(-1, 0, 0), 4),)}, "is no frame's"),
        ((4, 1), {"place": GroupPlace(0, 1)}, "is in no group of pictures"),
        ((4, 1), {"place": GroupPlace(1, -1)}, "is in no group of pictures"),
        ((4, 1), {"place": GroupPlace(1, 2**60)}, "is in no group of pictures"),
    ],
)
def test_a_group_that_cannot_be_is_refused(counts: tuple[int, ...], changes: dict[str, Any], error: str) -> None:
    *before, packet = group(*counts)
    message, arrays = token_message(0, 0, packet, QUESTION, earlier_packets=before)
    with pytest.raises(TransportError, match=error):
        token_packets(replace(message, **changes), wire(arrays))


def test_more_frames_than_a_group_can_have_are_not_read() -> None:
    message, _ = token_message(0, 0, group(1)[0], QUESTION)
    frames = (EarlierFrame(STAMP, 1),) * EARLIER_MAX
    place = GroupPlace(1, 2 * EARLIER_MAX)
    assert decode_token(replace(message, place=place, earlier=frames)).earlier == frames
    with pytest.raises(TransportError, match="cannot be read"):
        decode(encode(replace(message, place=place, earlier=(*frames, frames[0]))))


def test_a_grid_that_contradicts_itself_is_refused() -> None:
    message, arrays = token_message(0, 0, tokens(), QUESTION)
    for grid in (TileGrid(3, 5, 70, 100), TileGrid(0, 0, 0, 0)):
        with pytest.raises(TransportError, match="not the tile grid of its picture"):
            token_packet(replace(message, grid=grid), wire(arrays))


@pytest.mark.parametrize(
    ("region", "words"),
    [
        ([14, 0, 0], "a region that no texture has"),
        ([-1, 0, 0], "a region that no texture has"),
        ([2**31 - 1, 0, 0], "a region that no texture has"),
        ([7, 0, 1], "a region outside its frame"),
        ([13, 1, 0], "a region outside its frame"),
        ([7, 0, 2**30], "a region outside its frame"),
    ],
)
def test_regions_of_unknown_shapes_or_outside_the_frame_are_refused(region: list[int], words: str) -> None:
    packet = tokens(1)
    strange = dataclasses.replace(packet, regions=np.array([region], np.int32))
    message, arrays = token_message(0, 0, strange, QUESTION)
    with pytest.raises(TransportError, match=f"TokenPacketMessage holds {words}"):
        token_packet(message, wire(arrays))
    feedback = Feedback(STAMP, strange.regions, packet.relevance, packet.relevance)
    with pytest.raises(TransportError, match=f"feedback holds {words}"):
        check_feedback(feedback, STAMP, GRID)


def test_an_array_of_a_dtype_that_does_not_travel_is_refused_when_it_is_sent() -> None:
    with pytest.raises(TransportError, match="cannot travel"):
        specs_of(np.zeros(3))


def test_the_querys_embedding_survives_the_way() -> None:
    embedding = np.random.default_rng(2).random((4, 16), dtype=np.float32)
    asking = Embedded(text="What?", is_check=False, model_id="tiny", arrays=specs_of(embedding))
    actual = embedding_of(asking, [embedding.tobytes()])
    assert (actual.text, actual.model_id) == ("What?", "tiny")
    np.testing.assert_array_equal(actual.tokens, embedding)
    with pytest.raises(TransportError, match="Embedded must announce the arrays"):
        embedding_of(Embedded(text="What?", is_check=False, model_id="tiny", error="E", reason="too long"), [])


def answered(feedback: Feedback | None) -> AnswerReply:
    return AnswerReply(
        answer=0,
        text="",
        work=Work(0),
        feedback_stamp=feedback.stamp if feedback else None,
        arrays=specs_of(*feedback_arrays(feedback)),
    )


def embedded(value: float = 0.5, rows: int | None = None) -> Feedback:
    packet = tokens()
    components = np.full((len(packet.regions) if rows is None else rows, 16), value, np.float32)
    return Feedback(STAMP, packet.regions, packet.relevance, -packet.relevance, components)


@pytest.mark.parametrize("feedback", [dataclasses.replace(embedded(), embedding=None), embedded()])
def test_feedback_survives_the_way_with_components_of_embeddings_and_without(feedback: Feedback) -> None:
    actual = feedback_of(answered(feedback), wire(feedback_arrays(feedback)))
    assert actual is not None
    assert_same(actual, feedback)


@pytest.mark.parametrize(
    ("feedback", "reason"),
    [
        (embedded(1.5), "beyond 1"),
        (embedded(float("nan")), "beyond 1"),
        (embedded(rows=1), "must announce the arrays"),
    ],
    ids=["large", "nan", "too few"],
)
def test_embeddings_that_are_none_are_refused(feedback: Feedback, reason: str) -> None:
    with pytest.raises(TransportError, match=reason):
        feedback_of(answered(feedback), wire(feedback_arrays(feedback)))


def test_an_answer_may_come_without_feedback() -> None:
    assert feedback_of(answered(None), []) is None
    with pytest.raises(TransportError, match="announces 0 arrays and came with 1"):
        feedback_of(answered(None), [b"x"])


def test_an_empty_embedding_is_refused() -> None:
    empty = np.zeros((0, 16), np.float32)
    with pytest.raises(TransportError, match="the embedding of a question holds nothing"):
        embedding_of(Embedded(text="What?", is_check=False, model_id="tiny", arrays=specs_of(empty)), [b""])


def test_feedback_needs_a_number_and_an_embedding_for_each_region() -> None:
    with pytest.raises(TransportError, match="as many embeddings as regions"):
        checked_feedback(embedded(rows=1))
    packet = tokens()
    feedback = Feedback(STAMP, packet.regions, packet.relevance[:-1], packet.relevance)
    with pytest.raises(TransportError, match="feedback holds as many regions as it has numbers for"):
        checked_feedback(feedback)
