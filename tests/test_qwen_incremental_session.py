"""`encode="incremental"` from where it is asked for: a session, the library, a run's configuration."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_qwen import FAMILIES, tiny_folder, tiny_qwen

from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.incremental import IncrementalEncoder
from arr_coc.qwen.options import AnswerOptions, Decoding, IncrementalOptions
from arr_coc.qwen.positions import grid_regions
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import FrameStamp, TileGrid, TokenPacket
from stream.answer.model import QWEN, QwenAnswerModel, load_answer_model
from stream.config import AnswerConfig, Config, IncrementalConfig

GRID = TileGrid.of(96, 128)
QUERY = "Is the cat sleeping?"
ALONE = IncrementalOptions(every_frames=None, share=0.0, drift_limit=None)


def frames(count: int, changed: int = 2, epoch: int = 1, seed: int = 0) -> list[TokenPacket]:
    """Packets of all twelve tiles, of which some change from each to the next."""
    random = np.random.default_rng(seed)
    regions = grid_regions(GRID).numpy().astype(np.int32)
    pixels = random.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    packets = []
    for index in range(count):
        packets.append(TokenPacket(FrameStamp(index, index, 0, epoch), GRID, regions, np.ones(12, np.float32), pixels))
        pixels = pixels.copy()
        pixels[(changed * index + np.arange(changed)) % 12] = random.integers(0, 256, (changed, 3, 32, 32), np.uint8)
    return packets


def session(family: str = "qwen3_vl", **options: Any) -> AnswerSession:
    decoding = Decoding(max_tokens=8)
    return AnswerSession(tiny_qwen(family), AnswerOptions(decoding=decoding, encode="incremental", **options))


def said(speaking: AnswerSession, packets: TokenPacket | list[TokenPacket], query: str = QUERY) -> str:
    return "".join(speaking.answer(packets, query))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_of_answers_encodes_only_what_changed(family: str) -> None:
    speaking = session(family, incremental=ALONE)
    counts = []
    for packet in frames(4):
        said(speaking, packet)
        assert speaking.last.vision is not None
        counts.append(speaking.last.vision.encoded)
    assert counts == [12, 2, 2, 2]
    assert speaking.last.vision.held_regions == 12
    assert speaking.last.kept_bytes > speaking.last.vision.held_bytes > 0


def test_the_first_answer_and_each_after_a_refresh_are_those_of_sparse() -> None:
    speaking = session(incremental=replace(ALONE, every_frames=2))
    for index, packet in enumerate(frames(5, changed=6)):
        text = said(speaking, packet)
        if index % 2 == 0:
            plain = session()
            plain.qwen = speaking.qwen
            plain.configure(AnswerOptions("sparse", Decoding(max_tokens=8)))
            assert text == said(plain, packet)


def test_another_question_about_the_same_frame_encodes_nothing() -> None:
    speaking = session()
    (packet,) = frames(1)
    said(speaking, packet)
    before = speaking.last
    said(speaking, packet, "Say what happens.")
    assert speaking.last.prefilled_tokens < before.prefilled_tokens - 12


def test_an_answer_tells_of_its_own_stream_whoever_asks_meanwhile() -> None:
    speaking = session()
    pieces = speaking.answer(frames(1)[0], QUERY)
    next(pieces)
    speaking.vision = IncrementalEncoder(IncrementalOptions())
    list(pieces)
    assert speaking.last.vision is not None
    assert speaking.last.vision.held_regions == 12


def test_a_cut_empties_what_is_kept() -> None:
    speaking = session(incremental=ALONE)
    before, after = frames(2), frames(2, epoch=2)
    said(speaking, before[0])
    said(speaking, after[1])
    assert speaking.last.vision is not None
    assert speaking.last.vision.encoded == 12
    assert said(session(), after[1]) == speaking.last.text


@pytest.mark.parametrize("layout", ["causal", "window"])
def test_frames_of_one_prompt_share_what_is_kept(layout: Any) -> None:
    speaking = session(incremental=ALONE, frames=layout)
    packets = frames(3)
    said(speaking, packets)
    assert speaking.last.tokens_used == 36
    assert speaking.last.vision is not None
    assert speaking.last.vision.encoded == 2


def test_another_way_of_encoding_frees_it() -> None:
    speaking = session()
    packets = frames(2)
    said(speaking, packets[0])
    speaking.configure(AnswerOptions("sparse", Decoding(max_tokens=8)))
    said(speaking, packets[1])
    assert speaking.last.vision is None
    speaking.configure(AnswerOptions("incremental", Decoding(max_tokens=8)))
    said(speaking, packets[0])
    assert speaking.last.vision is not None
    assert speaking.last.vision.encoded == 12


def film(count: int) -> list[np.ndarray]:
    """A small square that walks over noise."""
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
    again = model.generate(pictures, QUERY, max_tokens=6, budget=20, encode="incremental", strategy="topk")
    assert again.text == result.text


def test_the_library_equals_sparse_where_there_is_one_picture() -> None:
    model = ARRCOCQwen(tiny_qwen())
    (picture,) = film(1)
    one = model.generate(picture, QUERY, max_tokens=6, budget=20, encode="incremental")
    other = model.generate(picture, QUERY, max_tokens=6, budget=20)
    assert one.text == other.text
    assert other.vision is None


def test_a_run_goes_by_its_configuration(tmp_path: Path) -> None:
    kept = IncrementalConfig(every_frames=None, share=0.0, drift_limit=None)
    folder = str(tiny_folder(tmp_path / "tiny"))
    answer = AnswerConfig(model=folder, max_tokens=3, encode="incremental", incremental=kept)
    speaker = load_answer_model(QWEN, Config(answer=answer))
    assert isinstance(speaker, QwenAnswerModel)
    for packet in frames(2):
        list(speaker.answer(packet, QUERY, lambda: False))
    vision = speaker._session.last.vision
    assert vision is not None
    assert vision.encoded == 2


def test_configuration_and_library_have_the_same_defaults() -> None:
    assert IncrementalConfig().model_dump() == asdict(IncrementalOptions())


def test_each_guest_of_an_answer_stage_has_its_own(tmp_path: Path) -> None:
    kept = IncrementalConfig(every_frames=None, share=0.0, drift_limit=None)
    folder = str(tiny_folder(tmp_path / "tiny"))
    answer = AnswerConfig(model=folder, max_tokens=1, encode="incremental", incremental=kept)
    speaker = load_answer_model(QWEN, Config(answer=answer))
    assert isinstance(speaker, QwenAnswerModel)
    counts = []
    for one, other in zip(frames(2, epoch=1), frames(2, changed=3, epoch=2, seed=1), strict=True):
        for guest, packet in ((b"one", one), (b"other", other)):
            speaker.attend(guest)
            list(speaker.answer(packet, QUERY, lambda: False))
            vision = speaker._session.last.vision
            assert vision is not None
            counts.append(vision.encoded)
    assert counts == [12, 12, 2, 3]
    speaker.forget(b"other")
    assert speaker._session.vision.report.held_bytes == 0
    speaker.attend(b"one")
    assert speaker._session.vision.report.held_regions == 12
