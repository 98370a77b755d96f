"""Encoding of packets: pooling, token counts, read-only arrays, and incremental encoding."""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from arr_coc.errors import NonFiniteError
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.encoding import EncodedFrame, IncrementalEncoder, encode_packet, pool_regions, token_count
from arr_coc.qwen.options import AnswerOptions, Decoding, IncrementalOptions
from arr_coc.qwen.pieces import same_picture
from arr_coc.qwen.preprocess import grid_regions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.vision import VisualTokens, embed_rows, run_blocks
from arr_coc.types import Encode, FramePacket, FrameStamp, TileGrid, TokenPacket
from stream.answer.model import CONFIGURED, load_answer_model
from stream.answer.qwen import QwenAnswerModel
from stream.config import AnswerConfig, Config, IncrementalConfig
from tests.support.answer_models import OneClient
from tests.support.models import FAMILIES, tiny_folder, tiny_model, tiny_qwen

GRID = TileGrid.of(3 * 32, 5 * 32)
STAMP = FrameStamp(0, 0, 0)


def whole() -> FramePacket:
    image = np.random.default_rng(0).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    return FramePacket(STAMP, GRID, np.array([[0, 1, 1], [1, 0, 1]], np.int32), np.ones((3, 5), np.float32), image)


def test_a_coarse_region_is_the_mean_over_its_tiles() -> None:
    rows = torch.arange(15.0).view(1, 15, 1)
    frame = EncodedFrame(VisualTokens(rows, (rows * 10,)), grid_regions(GRID)[None], GRID)
    regions = torch.tensor([[0, 1, 3], [1, 0, 1], [1, 1, 2], [3, 0, 0]])
    tokens = pool_regions(frame, regions).tokens
    assert tokens.embeds[0, :, 0].tolist() == pytest.approx([8.0, 5.0, 14.0, 7.0])
    assert tokens.deepstack[0][0, :, 0].tolist() == pytest.approx([80.0, 50.0, 140.0, 70.0])


@pytest.mark.parametrize(("encode", "tokens"), [("full", 15), ("prune", 2), ("sparse", 15), ("weighted", 15)])
def test_token_counts_are_those_of_the_encoding(encode: Encode, tokens: int) -> None:
    assert token_count(whole(), encode) == tokens
    assert encode_packet(tiny_qwen(), whole(), encode).tokens.embeds.shape[1] == tokens


def test_read_only_pixels_are_copied() -> None:
    qwen = tiny_qwen()
    pixels = np.zeros((1, 3, 32, 32), np.uint8)
    regions = np.array([[0, 1, 1]], np.int32)
    packet = TokenPacket(STAMP, GRID, regions, np.ones(1, np.float32), pixels)
    expected = encode_packet(qwen, packet, "sparse").tokens.embeds
    pixels.flags.writeable = regions.flags.writeable = False
    embeds = encode_packet(qwen, replace(packet), "sparse").tokens.embeds
    torch.testing.assert_close(embeds, expected)
    assert token_count(packet, "sparse") == 1


@torch.no_grad()
def test_32_pixel_tiles_reach_a_model_with_14_pixel_patches() -> None:
    qwen = tiny_qwen("qwen2_vl")
    full = encode_packet(qwen, whole(), "full").tokens.embeds
    tiles = whole().image.reshape(3, 32, 5, 32, 3).transpose(0, 2, 4, 1, 3).reshape(15, 3, 32, 32)
    regions = grid_regions(GRID).numpy().astype(np.int32)
    packet = TokenPacket(STAMP, GRID, regions, np.ones(15, np.float32), tiles)
    torch.testing.assert_close(encode_packet(qwen, packet, "sparse").tokens.embeds, full)


INCREMENTAL_GRID = TileGrid.of(6 * 32, 9 * 32)
ALONE = IncrementalOptions(every_frames=None, share=0.0, drift_limit=None)
"""Options that encode only new and changed regions."""

Name = tuple[int, int, int]


class World:
    """Pixels of every region, which `change` replaces. A coarse region has separate pixels."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self.pixels: dict[Name, np.ndarray] = {}

    def change(self, *names: Name) -> None:
        for name in names:
            self.pixels[name] = self._random.integers(0, 256, (3, 32, 32), dtype=np.uint8)

    def packet(self, names: list[Name], epoch: int = 1, grid: TileGrid = INCREMENTAL_GRID) -> TokenPacket:
        self.change(*(name for name in names if name not in self.pixels))
        pixels = np.stack([self.pixels[name] for name in names])
        regions = np.array(names, np.int32)
        return TokenPacket(FrameStamp(0, 0, 0, epoch), grid, regions, np.ones(len(names), np.float32), pixels)


def names_of(*, rows: range = range(6), cols: range = range(9), level: int = 0) -> list[Name]:
    return [(level, row, col) for row in rows for col in cols]


EVERY = names_of()
MIXED = [*names_of(rows=range(4), cols=range(4)), (1, 0, 2), (1, 1, 2), (2, 0, 2), *names_of(rows=range(4, 6))]
"""A quadtree's cover: fine on the left and below, coarse on the right."""


def tensors(tokens: VisualTokens) -> list[torch.Tensor]:
    return [tokens.embeds, *tokens.deepstack]


def incremental(encoder: IncrementalEncoder, qwen: QwenVL, packet: TokenPacket) -> VisualTokens:
    return encode_packet(qwen, packet, "incremental", encoder).tokens


def sparse(qwen: QwenVL, packet: TokenPacket) -> VisualTokens:
    return encode_packet(qwen, packet, "sparse").tokens


def assert_same(tokens: VisualTokens, expected: VisualTokens, atol: float = 0.0) -> None:
    for rows, expected_rows in zip(tensors(tokens), tensors(expected), strict=True):
        torch.testing.assert_close(rows, expected_rows, atol=atol, rtol=0)


def off(tokens: VisualTokens, truth: VisualTokens) -> float:
    return float((tokens.embeds - truth.embeds).norm() / truth.embeds.norm())


@pytest.mark.parametrize("encode", ["sparse", "incremental"])
def test_pixels_that_are_tensors_give_the_same_tokens(encode: Encode) -> None:
    qwen, scene = tiny_qwen(), World()
    encoders = IncrementalEncoder(), IncrementalEncoder()
    for changed in ((), EVERY[:5], EVERY[3:20]):
        scene.change(*changed)
        packet = scene.packet(MIXED)
        of_tensors = replace(packet, pixels=torch.from_numpy(packet.host_pixels))
        expected, tokens = (
            encode_packet(qwen, source, encode, encoder).tokens
            for source, encoder in zip((packet, of_tensors), encoders, strict=True)
        )
        assert_same(tokens, expected)
    assert same_picture(of_tensors, replace(of_tensors, pixels=of_tensors.pixels.clone()))
    assert not same_picture(of_tensors, replace(of_tensors, pixels=of_tensors.pixels + 1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("names", [EVERY, MIXED], ids=["all tiles", "mixed levels"])
def test_a_frame_of_stale_regions_equals_sparse(family: str, dtype: torch.dtype, names: list[Name]) -> None:
    """Bit for bit, at the start of a stream, if all regions change, and if all are due; in any order of slots."""
    qwen, world = tiny_qwen(family), World()
    qwen.model.to(dtype)
    encoder = IncrementalEncoder(IncrementalOptions(every_frames=4, drift_limit=None))
    for frame in range(8):
        frame_names = names if frame % 4 in (0, 3) else names[frame:]
        world.change(*(names if frame == 3 else names[:5]))
        packet = world.packet(frame_names)
        tokens = incremental(encoder, qwen, packet)
        if frame in (0, 3, 7):
            assert_same(tokens, sparse(qwen, packet))
        assert (encoder.report.encoded == len(frame_names)) == (frame in (0, 3, 7))


class Reference:
    """Reference of `IncrementalEncoder`: dictionaries of each region's keys, values and outputs; windows as a mask."""

    def __init__(self, tower: Any) -> None:
        self._tower = tower
        self._pixels: dict[Name, np.ndarray] = {}
        self._keys: dict[tuple[Name, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._outputs: dict[Name, list[torch.Tensor]] = {}

    @torch.no_grad()
    def encode(self, packet: TokenPacket) -> tuple[list[torch.Tensor], int]:
        names: list[Name] = [(int(level), int(row), int(col)) for level, row, col in packet.regions]
        fresh = [
            index
            for index, name in enumerate(names)
            if name not in self._pixels or (self._pixels[name] != packet.pixels[index]).any()
        ]

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            for place, index in enumerate(fresh):
                rows = slice(4 * place, 4 * place + 4)
                self._keys[names[index], layer] = key[0, rows], value[0, rows]
            keys, values = (torch.cat([self._keys[name, layer][part] for name in names]) for part in (0, 1))
            sees = torch.tensor([[self._sees(names[index], other, layer) for other in names] for index in fresh])
            sees = sees.repeat_interleave(4, 0).repeat_interleave(4, 1)
            scores = torch.einsum("qhd,khd->hqk", query[0], keys) / math.sqrt(query.shape[-1])
            weights = F.softmax(scores.masked_fill(~sees, -torch.inf), dim=-1)
            return torch.einsum("hqk,khd->qhd", weights, values)[None]

        pixels, regions = torch.from_numpy(packet.pixels[fresh])[None], torch.tensor([names[i] for i in fresh])[None]
        tokens = run_blocks(self._tower, embed_rows(self._tower, pixels, regions, packet.grid), attend)
        for place, index in enumerate(fresh):
            self._pixels[names[index]] = packet.pixels[index]
            self._outputs[names[index]] = [rows[0, place] for rows in tensors(tokens)]
        parts = zip(*(self._outputs[name] for name in names), strict=True)
        return [torch.stack(rows)[None] for rows in parts], len(fresh)

    def _sees(self, first: Name, second: Name, layer: int) -> bool:
        if layer in getattr(self._tower, "fullatt_block_indexes", range(99)):
            return True
        side_tiles = self._tower.config.window_size // self._tower.config.patch_size // 2
        return self._window(first, side_tiles) == self._window(second, side_tiles)

    @staticmethod
    def _window(name: Name, side_tiles: int) -> tuple[int, int]:
        level, row, col = name
        middle = (2**level - 1) / 2
        return int((row * 2**level + middle) // side_tiles), int((col * 2**level + middle) // side_tiles)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_history_equals_the_reference(family: str) -> None:
    """Regions change, come, leave, return changed or unchanged, split and merge; no frame shows parent and child."""
    qwen, world, random = tiny_qwen(family), World(), np.random.default_rng(1)
    encoder, reference = IncrementalEncoder(ALONE), Reference(qwen.tower)
    counts = []
    for frame in range(12):
        names = [name for name in (MIXED if frame % 4 > 1 else EVERY) if random.random() < 0.8]
        world.change(*(name for name in names if random.random() < 0.1))
        packet = world.packet(names)
        tokens = incremental(encoder, qwen, packet)
        expected, fresh = reference.encode(packet)
        if encoder.report.encoded != fresh:
            pytest.fail(f"frame {frame}: {encoder.report.encoded} encoded, {fresh} expected")
        for rows, expected_rows in zip(tensors(tokens), expected, strict=True):
            torch.testing.assert_close(rows, expected_rows, atol=2e-5, rtol=0)
        counts.append(fresh / len(names))
    assert 0.1 < np.mean(counts[1:]) < 0.5
    assert encoder.report.held_regions > len(EVERY)


def test_a_region_that_returns_unchanged_is_not_encoded_again() -> None:
    qwen, world, encoder = tiny_qwen(), World(), IncrementalEncoder(ALONE)
    before = incremental(encoder, qwen, world.packet(EVERY))
    incremental(encoder, qwen, world.packet(EVERY[10:]))
    assert encoder.report.encoded == 0
    back = incremental(encoder, qwen, world.packet(EVERY))
    assert encoder.report.encoded == 0
    assert_same(back, before)


def test_a_region_that_changed_while_away_is_encoded_again() -> None:
    qwen, world, encoder = tiny_qwen(), World(), IncrementalEncoder(ALONE)
    before = incremental(encoder, qwen, world.packet(EVERY))
    incremental(encoder, qwen, world.packet(EVERY[10:]))
    world.change(EVERY[3])
    back = incremental(encoder, qwen, world.packet(EVERY))
    assert encoder.report.encoded == 1
    same = (back.embeds == before.embeds)[0].all(dim=-1)
    assert same.tolist() == [index != 3 for index in range(len(EVERY))]


def test_an_unchanged_frame_costs_nothing_and_is_the_same() -> None:
    qwen, world, encoder = tiny_qwen(), World(), IncrementalEncoder(ALONE)
    before = incremental(encoder, qwen, world.packet(MIXED))
    after = incremental(encoder, qwen, world.packet(MIXED))
    assert encoder.report.encoded == 0
    assert encoder.report.drift is None
    assert_same(after, before)
    with torch.inference_mode():
        after.embeds.zero_()
    assert_same(incremental(encoder, qwen, world.packet(MIXED)), before)


def other_model(qwen: QwenVL, packet: TokenPacket) -> tuple[QwenVL, TokenPacket]:
    return replace(qwen, model=tiny_model(seed=7)), packet


def other_dtype(qwen: QwenVL, packet: TokenPacket) -> tuple[QwenVL, TokenPacket]:
    qwen.model.to(torch.bfloat16)
    return qwen, packet


def other_grid(qwen: QwenVL, packet: TokenPacket) -> tuple[QwenVL, TokenPacket]:
    return qwen, replace(packet, grid=TileGrid.of(6 * 32, 10 * 32))


def cut(qwen: QwenVL, packet: TokenPacket) -> tuple[QwenVL, TokenPacket]:
    return qwen, replace(packet, stamp=replace(packet.stamp, epoch=2))


@pytest.mark.parametrize("change", [cut, other_grid, other_model, other_dtype])
def test_the_cache_of_another_model_grid_or_epoch_is_dropped(change: Any) -> None:
    qwen, world, encoder = tiny_qwen(), World(), IncrementalEncoder(ALONE)
    incremental(encoder, qwen, world.packet(EVERY))
    incremental(encoder, qwen, world.packet(EVERY[:20]))
    qwen, packet = change(qwen, world.packet(EVERY[10:30]))
    tokens = incremental(encoder, qwen, packet)
    assert encoder.report.encoded == encoder.report.held_regions == 20
    assert_same(tokens, sparse(qwen, packet))


def test_the_error_falls_with_refresh_and_is_estimated() -> None:
    qwen = tiny_qwen()
    errors, estimates = [], []
    for share in (0.0, 0.1, 0.3):
        world = World()
        encoder = IncrementalEncoder(replace(ALONE, share=share))
        frame_errors = []
        for frame in range(16):
            if frame:
                world.change(*EVERY[4 * frame % 50 :][:4])
            packet = world.packet(EVERY)
            frame_errors.append(off(incremental(encoder, qwen, packet), sparse(qwen, packet)))
            if frame and share:
                assert encoder.report.encoded == 4 + encoder.report.refreshed
                assert encoder.report.refreshed == math.ceil(share * len(EVERY))
                estimates.append(encoder.report.drift)
        errors.append(float(np.mean(frame_errors)))
    assert errors[0] > 1.2 * errors[1] > 1.2 * 1.2 * errors[2] > 0
    assert min(estimates) > 0
    assert 0.5 < np.mean(estimates) / np.mean(errors[1:]) < 3


def test_neighbours_of_what_changed_are_refreshed_first() -> None:
    qwen, world, encoder = tiny_qwen(), World(), IncrementalEncoder(replace(ALONE, share=3 / 54))
    before = incremental(encoder, qwen, world.packet(EVERY))
    world.change((0, 5, 8))
    after = incremental(encoder, qwen, world.packet(EVERY))
    changed_regions = (after.embeds != before.embeds)[0].any(dim=-1)
    assert [EVERY[index][1:] for index in changed_regions.nonzero().flatten()] == [(4, 7), (4, 8), (5, 7), (5, 8)]


def test_drift_above_the_limit_refreshes_the_whole_frame() -> None:
    qwen, world = tiny_qwen(), World()
    encoder = IncrementalEncoder(replace(ALONE, share=0.1, drift_limit=1e-6))
    counts = []
    for frame in range(4):
        world.change(EVERY[frame])
        packet = world.packet(EVERY)
        tokens = incremental(encoder, qwen, packet)
        counts.append(encoder.report.encoded)
    assert counts == [54, 7, 54, 7]
    world.change(EVERY[0])
    packet = world.packet(EVERY)
    tokens = incremental(encoder, qwen, packet)
    assert_same(tokens, sparse(qwen, packet))
    assert encoder.report.drift is not None


def test_the_same_frames_give_the_same_tokens() -> None:
    def run() -> list[VisualTokens]:
        qwen, world, encoder = tiny_qwen("qwen2_5_vl"), World(), IncrementalEncoder()
        tokens = []
        for frame in range(6):
            world.change(*EVERY[5 * frame :][:5])
            tokens.append(incremental(encoder, qwen, world.packet(EVERY[frame:])))
        return tokens

    for first, second in zip(run(), run(), strict=True):
        assert_same(first, second)


def test_memory_keeps_its_bound_over_a_thousand_frames() -> None:
    qwen, random = tiny_qwen(depth=1), np.random.default_rng(0)
    pixels = random.integers(0, 256, (len(EVERY), 3, 32, 32), dtype=np.uint8)
    regions = np.array(EVERY, np.int32)
    encoder = IncrementalEncoder(IncrementalOptions(memory_mb=0.2))
    limit_bytes, sizes = 200_000, []
    for frame in range(1000):
        pixels[random.integers(0, len(EVERY))] = frame % 256
        indices = np.sort(random.permutation(len(EVERY))[: random.integers(2, 7)])
        stamp = FrameStamp(frame, 0, 0, epoch=1 + frame // 400)
        packet = TokenPacket(
            stamp, INCREMENTAL_GRID, regions[indices], np.ones(len(indices), np.float32), pixels[indices]
        )
        encode_packet(qwen, packet, "incremental", encoder)
        report = encoder.report
        sizes.append(report.held_bytes)
        assert len(indices) <= report.held_regions
        assert 0 < report.held_bytes <= limit_bytes
    assert len(set(sizes)) <= 9


def test_a_frame_above_the_limit_is_encoded_whole_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    qwen, world, encoder = tiny_qwen(), World(), IncrementalEncoder(replace(ALONE, memory_mb=0.4))
    few = EVERY[:8]
    incremental(encoder, qwen, world.packet(few))
    size = encoder.report.held_bytes
    assert 0 < size <= 400_000
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert_same(incremental(encoder, qwen, world.packet(EVERY)), sparse(qwen, world.packet(EVERY)))
    assert [record.getMessage() for record in caplog.records] == [
        "caching the keys of 54 tokens takes 0.5 MB, more than memory_mb = 0.4; such frames are encoded whole"
    ]
    assert encoder.report.encoded == 54
    incremental(encoder, qwen, world.packet(few))
    assert encoder.report.encoded == 0
    assert encoder.report.held_bytes == size


def test_a_larger_allocation_gets_more_room() -> None:
    qwen, world, encoder = tiny_qwen(), World(), IncrementalEncoder(ALONE)
    incremental(encoder, qwen, world.packet(EVERY[:10]))
    assert encoder.report.held_regions == 10
    tokens = incremental(encoder, qwen, world.packet(EVERY))
    assert encoder.report.held_regions == 54
    assert_same(tokens, sparse(qwen, world.packet(EVERY)))


def test_other_options_drop_the_cache() -> None:
    qwen, world, encoder = tiny_qwen(), World(), IncrementalEncoder(ALONE)
    incremental(encoder, qwen, world.packet(EVERY))
    encoder.configure(replace(ALONE))
    assert encoder.report.held_regions == 54
    encoder.configure(replace(ALONE, memory_mb=1.0))
    assert encoder.report.held_regions == encoder.report.held_bytes == 0


def test_an_error_empties_the_cache() -> None:
    qwen, world, encoder = tiny_qwen(), World(), IncrementalEncoder(ALONE)
    incremental(encoder, qwen, world.packet(EVERY))
    world.change(EVERY[0])
    weight = qwen.tower.blocks[0].mlp.linear_fc1.weight.data
    good = weight.clone()
    weight[0] = torch.nan
    with pytest.raises(NonFiniteError, match="the visual embeddings hold NaN"):
        incremental(encoder, qwen, world.packet(EVERY))
    assert encoder.report.held_bytes == 0
    weight.copy_(good)
    assert_same(incremental(encoder, qwen, world.packet(EVERY)), sparse(qwen, world.packet(EVERY)))


def test_a_whole_frame_leaves_the_cache_as_it_is() -> None:
    """If allocation failed, the packet holds the whole frame."""
    qwen, world, encoder = tiny_qwen(), World(), IncrementalEncoder(ALONE)
    incremental(encoder, qwen, world.packet(EVERY))
    image = np.zeros((INCREMENTAL_GRID.padded_height_px, INCREMENTAL_GRID.padded_width_px, 3), np.uint8)
    regions = grid_regions(INCREMENTAL_GRID).numpy().astype(np.int32)
    frame = FramePacket(
        FrameStamp(1, 0, 0, 1), INCREMENTAL_GRID, regions, np.ones(INCREMENTAL_GRID.shape, np.float32), image
    )
    assert encode_packet(qwen, frame, "incremental", encoder).tokens.embeds.shape[1] == 54
    incremental(encoder, qwen, world.packet(EVERY))
    assert encoder.report.encoded == 0


def test_without_a_cache_it_equals_sparse() -> None:
    qwen, packet = tiny_qwen(), World().packet(MIXED)
    assert_same(encode_packet(qwen, packet, "incremental").tokens, sparse(qwen, packet))


SESSION_GRID = TileGrid.of(96, 128)
QUERY = "Is the cat sleeping?"
SESSION_ALONE = IncrementalOptions(every_frames=None, share=0.0, drift_limit=None)


def frames(count: int, changed: int = 2, epoch: int = 1, seed: int = 0) -> list[TokenPacket]:
    """Return packets of all twelve tiles, some of which change between packets."""
    random = np.random.default_rng(seed)
    regions = grid_regions(SESSION_GRID).numpy().astype(np.int32)
    pixels = random.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    packets = []
    for index in range(count):
        packets.append(
            TokenPacket(FrameStamp(index, index, 0, epoch), SESSION_GRID, regions, np.ones(12, np.float32), pixels)
        )
        pixels = pixels.copy()
        pixels[(changed * index + np.arange(changed)) % 12] = random.integers(0, 256, (changed, 3, 32, 32), np.uint8)
    return packets


def session(family: str = "qwen3_vl", **options: Any) -> AnswerSession:
    decoding = Decoding(max_tokens=8)
    return AnswerSession(tiny_qwen(family), AnswerOptions(decoding=decoding, encode="incremental", **options))


def answer_text(speaking: AnswerSession, packets: TokenPacket | list[TokenPacket], query: str = QUERY) -> str:
    return "".join(speaking.answer(packets, query))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_of_answers_encodes_only_what_changed(family: str) -> None:
    speaking = session(family, incremental=SESSION_ALONE)
    counts = []
    for packet in frames(4):
        answer_text(speaking, packet)
        assert speaking.last.vision is not None
        counts.append(speaking.last.vision.encoded)
    assert counts == [12, 2, 2, 2]
    assert speaking.last.vision.held_regions == 12
    assert speaking.last.work.kept_bytes > speaking.last.vision.held_bytes > 0


def test_the_first_answer_and_each_after_a_refresh_are_those_of_sparse() -> None:
    speaking = session(incremental=replace(SESSION_ALONE, every_frames=2))
    for index, packet in enumerate(frames(5, changed=6)):
        text = answer_text(speaking, packet)
        if index % 2 == 0:
            plain = session()
            plain.qwen = speaking.qwen
            plain.configure(AnswerOptions("sparse", Decoding(max_tokens=8)))
            assert text == answer_text(plain, packet)


def test_another_question_about_the_same_frame_encodes_nothing() -> None:
    speaking = session()
    (packet,) = frames(1)
    answer_text(speaking, packet)
    before = speaking.last
    answer_text(speaking, packet, "Say what happens.")
    assert speaking.last.work.prefilled_tokens < before.work.prefilled_tokens - 12


def test_an_answer_reports_its_own_stream_if_another_client_asks_meanwhile() -> None:
    speaking = session()
    pieces = speaking.answer(frames(1)[0], QUERY)
    next(pieces)
    speaking.vision = IncrementalEncoder(IncrementalOptions())
    list(pieces)
    assert speaking.last.vision is not None
    assert speaking.last.vision.held_regions == 12


def test_a_cut_empties_the_cache() -> None:
    speaking = session(incremental=SESSION_ALONE)
    before, after = frames(2), frames(2, epoch=2)
    answer_text(speaking, before[0])
    answer_text(speaking, after[1])
    assert speaking.last.vision is not None
    assert speaking.last.vision.encoded == 12
    assert answer_text(session(), after[1]) == speaking.last.text


def test_frames_of_one_prompt_share_the_cache() -> None:
    speaking = session(incremental=SESSION_ALONE)
    packets = frames(3)
    answer_text(speaking, packets)
    assert speaking.last.work.tokens_used == 36
    assert speaking.last.vision is not None
    assert speaking.last.vision.encoded == 2


def test_another_encoding_frees_the_cache() -> None:
    speaking = session()
    packets = frames(2)
    answer_text(speaking, packets[0])
    speaking.configure(AnswerOptions("sparse", Decoding(max_tokens=8)))
    answer_text(speaking, packets[1])
    assert speaking.last.vision is None
    speaking.configure(AnswerOptions("incremental", Decoding(max_tokens=8)))
    answer_text(speaking, packets[0])
    assert speaking.last.vision is not None
    assert speaking.last.vision.encoded == 12


def film(count: int) -> list[np.ndarray]:
    """Return frames of a small square that moves over noise."""
    ground = np.random.default_rng(3).integers(90, 110, (160, 224, 3), dtype=np.uint8)
    pictures = []
    for index in range(count):
        picture = ground.copy()
        picture[70:90, 10 + 30 * index : 30 + 30 * index] = (250, 20, 20)
        pictures.append(picture)
    return pictures


@pytest.mark.parametrize("family", FAMILIES)
def test_the_library_answers_about_a_film(family: str) -> None:
    model = ARRCOCQwen(tiny_qwen(family))
    pictures = film(4)
    result = model.generate(pictures, QUERY, max_tokens=6, budget=20, encode="incremental", strategy="topk")
    assert result.tokens_used == 80
    assert result.vision is not None
    assert result.vision.encoded < 20
    repetition = model.generate(pictures, QUERY, max_tokens=6, budget=20, encode="incremental", strategy="topk")
    assert repetition.text == result.text


def test_the_library_equals_sparse_for_one_picture() -> None:
    model = ARRCOCQwen(tiny_qwen())
    (picture,) = film(1)
    incremental_answer = model.generate(picture, QUERY, max_tokens=6, budget=20, encode="incremental")
    sparse_answer = model.generate(picture, QUERY, max_tokens=6, budget=20)
    assert incremental_answer.text == sparse_answer.text
    assert sparse_answer.vision is None


def test_a_run_uses_its_configuration(tmp_path: Path) -> None:
    settings = IncrementalConfig(every_frames=None, share=0.0, drift_limit=None)
    folder = str(tiny_folder(tmp_path / "tiny"))
    answer = AnswerConfig(model=folder, max_tokens=3, encode="incremental", incremental=settings)
    model = load_answer_model(CONFIGURED, Config(answer=answer))
    assert isinstance(model, QwenAnswerModel)
    for packet in frames(2):
        OneClient(model).answer(packet, QUERY)
    vision = model._session.last.vision
    assert vision is not None
    assert vision.encoded == 2


def test_configuration_and_library_have_the_same_defaults() -> None:
    assert IncrementalConfig().model_dump() == asdict(IncrementalOptions())


def test_each_client_of_an_answer_stage_has_its_own(tmp_path: Path) -> None:
    settings = IncrementalConfig(every_frames=None, share=0.0, drift_limit=None)
    folder = str(tiny_folder(tmp_path / "tiny"))
    answer = AnswerConfig(model=folder, max_tokens=1, encode="incremental", incremental=settings)
    model = load_answer_model(CONFIGURED, Config(answer=answer))
    assert isinstance(model, QwenAnswerModel)
    counts = []
    for first, second in zip(frames(2, epoch=1), frames(2, changed=3, epoch=2, seed=1), strict=True):
        for client, packet in ((b"one", first), (b"other", second)):
            OneClient(model, client).answer(packet, QUERY)
            vision = model._session.last.vision
            assert vision is not None
            counts.append(vision.encoded)
    assert counts == [12, 12, 2, 3]
    model.drop_client(b"other")
    assert model._session.vision.report.held_bytes == 0
    assert model._visions[b"one"].report.held_regions == 12
