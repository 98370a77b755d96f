"""The clips with known cuts: the same every time, and parted so that nothing tuned on is scored on."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks.support.cut_grounds import HEIGHT_PX, REAL_CLIPS, WIDTH_PX, drawn_grounds, real_grounds
from benchmarks.support.cut_material import HELD_OUT_KINDS, TUNING_KINDS, Material, material, planes_of_rgb

NOWHERE = Path("no-such-folder")


@pytest.fixture(scope="module")
def clips() -> list[Material]:
    """Five clips of the first kind, over drawn grounds."""
    return list(islice(material("tuning", NOWHERE, 5, grounds_per_sort=4), 5))


def test_a_clip_lists_the_starts_of_its_shots(clips: list[Material]) -> None:
    for clip in clips:
        assert clip.frames[0].shape == (HEIGHT_PX, WIDTH_PX, 3)
        assert 0 < clip.cuts[0] < clip.cuts[-1] < len(clip.frames)
        for cut in clip.cuts:
            across = np.abs(clip.frames[cut].astype(int) - clip.frames[cut - 1]).mean()
            within = np.abs(clip.frames[cut + 1].astype(int) - clip.frames[cut]).mean()
            assert across > within
    assert len({clip.sort for clip in clips}) == 5


def test_the_same_clips_are_made_every_time(clips: list[Material]) -> None:
    repeat = next(material("tuning", NOWHERE, 5, grounds_per_sort=4))
    assert repeat.cuts == clips[0].cuts
    assert all((frame == other).all() for frame, other in zip(repeat.frames, clips[0].frames, strict=True))


def test_the_parts_share_no_clip_no_seed_and_some_kinds_not() -> None:
    assert not set(REAL_CLIPS["tuning"]) & set(REAL_CLIPS["held-out"])
    assert not set(TUNING_KINDS) & set(HELD_OUT_KINDS)
    tuning, held_out = drawn_grounds("tuning", 0), drawn_grounds("held-out", 0)
    assert all((tuning[sort].wide != held_out[sort].wide).any() for sort in tuning)


def test_without_real_clips_there_are_drawn_ones_only() -> None:
    assert real_grounds("tuning", NOWHERE) == []


def test_frames_become_planes_as_a_decoder_gives_them(clips: list[Material]) -> None:
    planes = planes_of_rgb(clips[0].frames[0])
    assert [plane.shape for plane in planes.planes] == [(270, 480), (135, 240), (135, 240)]
