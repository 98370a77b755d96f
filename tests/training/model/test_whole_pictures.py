"""Lessons of whole pictures: every tile of every picture, at any size, and boxes that follow the pixels."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from arr_coc.qwen.families import family_of
from arr_coc.qwen.preprocess import PixelNormalisation, Preprocessing, grid_regions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import FrameStamp, TileGrid, TokenPacket
from tests.training.model.test_network import prefilled_logits
from training.clips.truth import Clip, Seen
from training.model.batches import IGNORED, Batch, Prompter, make_batch, random_batches
from training.model.lessons import Lesson
from training.model.network import Learner, new_model, scenes_config
from training.model.tokenizer import scenes_tokenizer
from training.model.whole_pictures import LEAST_TILES, MOST_TILES, WholePictures, WholePlan, _album, _scaled

WHITE_BOX = (128.0, 64.0, 192.0, 96.0)


def white_box_lesson() -> Lesson:
    """A black picture of 256x256 with a white box, which a question is about."""
    image = np.zeros((256, 256, 3), np.uint8)
    image[64:96, 128:192] = 255
    clip = Clip((image,), (0.0,), ((Seen("square", "white", WHITE_BOX),),))
    return Lesson(clip, (("what colour is the square?", "white."),), (((WHITE_BOX,),),))


def whole_batch(shown_px: tuple[tuple[int, int], ...], *, parts: bool) -> Batch:
    rng = np.random.default_rng(4)
    pictures = WholePictures(rng)
    tiles = max(TileGrid.of(high, wide).tiles for wide, high in shown_px)
    plan = WholePlan(True, 0, False, False, 1, (256, 256), tiles, "grid", shown_px=shown_px, parts=parts)
    return make_batch(plan, pictures, pictures, Prompter(), rng).clips(2)


def test_every_tile_is_shown_once_at_level_0_on_grids_of_many_sizes() -> None:
    grids = set()
    several = 0
    for batch in islice(random_batches(2, SimpleNamespace(value=1.0), whole=True), 40):
        for frame, (grid, tokens) in enumerate(batch.frames):
            expected = grid_regions(grid).long().expand(len(batch.regions), -1, -1)
            assert tokens == grid.tiles <= MOST_TILES
            assert torch.equal(batch.regions[:, frame, :tokens], expected)
            assert (batch.targets[:, frame, tokens:] == IGNORED).all(), "padding has no target"
            grids.add(grid.shape)
        several += len(batch.frames) > 1 and batch.times.shape[2] == 0
        assert batch.overview == 0
    assert len(grids) > 15
    assert several, "albums, and pictures with parts"
    assert min(rows * cols for rows, cols in grids) < LEAST_TILES * 2


@pytest.mark.parametrize(
    ("shown_px", "parts"),
    [(((192, 128),), False), (((128, 96), (96, 160), (64, 64)), True), (((160, 96), (96, 96)), False)],
    ids=["picture", "parts", "album"],
)
def test_training_has_the_logits_of_answering(shown_px: tuple[tuple[int, int], ...], parts: bool) -> None:
    learner = Learner(new_model(seed=3, whole=True)).eval()
    batch = whole_batch(shown_px, parts=parts)
    assert [(grid.width_px, grid.height_px) for grid, _ in batch.frames] == list(shown_px)
    prep = Preprocessing(16, PixelNormalisation(), 1024, 1 << 22)
    qwen = QwenVL(learner.model, scenes_tokenizer(), prep, "scenes", family_of("qwen3_vl", "scenes"))
    with torch.inference_mode():
        packed = learner._answers(batch, learner.see(batch))
    for clip in range(2):
        packets = []
        for frame, (grid, tokens) in enumerate(batch.frames):
            regions = batch.regions[clip, frame, :tokens].numpy().astype(np.int32)
            pixels = batch.pixels[clip, frame, :tokens].numpy()
            packets.append(TokenPacket(FrameStamp(frame, frame, 0), grid, regions, np.ones(tokens, np.float32), pixels))
        places = (batch.question_numbers[clip] == 1).nonzero().flatten()
        begins = places[0] + int((batch.labels[clip, places] != IGNORED).nonzero()[0])
        question = batch.ids[clip, places[0] : begins].tolist()
        expected = prefilled_logits(qwen, packets, [()] * len(packets), question)
        torch.testing.assert_close(packed[clip, begins - 1], expected, atol=3e-4, rtol=1e-3)


def test_boxes_follow_the_pixels_into_a_smaller_picture_and_into_its_parts() -> None:
    small = _scaled(white_box_lesson(), (128, 64))
    assert small.clip.things[0][0].box_px == (64, 16, 96, 24)
    assert small.about == ((((64, 16, 96, 24),),),)
    pictures = WholePictures(np.random.default_rng(6))
    shown = 0
    for _ in range(12):
        lesson = pictures._zoomed(white_box_lesson(), ((128, 128), (96, 64)))
        assert not lesson.timed
        assert lesson.questions == white_box_lesson().questions
        assert lesson.about[0] == (((64, 32, 96, 48),),) * 2, "places are shares of the whole picture"
        image, things = lesson.clip.frames[1], lesson.clip.things[1]
        assert image.shape == (64, 96, 3)
        assert bool(things) == bool(image.any())
        for thing in things:
            left, top, right, bottom = (round(edge) for edge in thing.box_px)
            inside = np.zeros(image.shape[:2], bool)
            inside[max(0, top) : bottom, max(0, left) : right] = True
            assert image[inside].mean() > 200
            assert image[~inside].mean() < 30
            shown += 1
    assert shown > 5


def test_an_album_asks_about_each_picture_by_its_number() -> None:
    first, second = white_box_lesson(), _scaled(white_box_lesson(), (128, 64))
    album = _album([first, second])
    assert [question for question, _ in album.questions] == [
        "picture 1: what colour is the square?",
        "picture 2: what colour is the square?",
    ]
    assert album.about == (((WHITE_BOX,), (WHITE_BOX,)),) * 2, "places are shares of the picture that is asked about"
    assert [frame.shape for frame in album.clip.frames] == [(256, 256, 3), (64, 128, 3)]


def test_a_model_of_whole_pictures_does_not_claim_to_know_coarse_tokens() -> None:
    assert scenes_config().arr_coc_levels
    assert not hasattr(scenes_config(whole=True), "arr_coc_levels")
