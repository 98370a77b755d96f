"""Drawn clips of events: what is there, and when."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.events.clips import EVENTS, MOST_THINGS, EventClip, EventKind, event_clip, name_of

CLIPS_A_KIND = 4


def clips_of(kind: EventKind) -> list[EventClip]:
    return [event_clip(np.random.default_rng([number, EVENTS.index(kind)]), kind) for number in range(CLIPS_A_KIND)]


def names(clip: EventClip, point: int) -> set[str]:
    return {name_of(thing) for thing in clip.there(clip.schedule.answers[point])}


@pytest.mark.parametrize("kind", EVENTS)
def test_a_clip_has_history_before_and_after_its_event(kind: EventKind) -> None:
    for clip in clips_of(kind):
        schedule = clip.schedule
        assert 6 <= len(schedule.answers) <= 10
        assert 2 <= schedule.at < len(schedule.answers) - 2
        assert {4, 5, 6, 7, 8} >= set(np.diff(schedule.answers).tolist())
        assert len(clip.gains) == schedule.frames == len(clip.plan.times_s)
        for point in range(len(schedule.answers)):
            assert 1 <= len(names(clip, point)) <= MOST_THINGS
            assert names(clip, point) >= set(clip.others) - {clip.actor} or kind == "hidden"
        assert {frozenset(names(clip, point)) for point in range(schedule.at)} == {frozenset(names(clip, 0))}


@pytest.mark.parametrize("kind", ["leaves", "comes", "replaced", "text"])
def test_things_come_and_go_with_the_event(kind: EventKind) -> None:
    for clip in clips_of(kind):
        at = clip.schedule.at
        lost_names, new_names = names(clip, at - 1) - names(clip, at), names(clip, at) - names(clip, at - 1)
        assert lost_names == ({clip.actor} if clip.actor else set())
        assert new_names == ({clip.after} if clip.after else set())


def test_a_hidden_thing_comes_back() -> None:
    for clip in clips_of("hidden"):
        at, back = clip.schedule.at, clip.schedule.back
        assert at < back < len(clip.schedule.answers)
        for point in range(len(clip.schedule.answers)):
            assert (clip.actor in names(clip, point)) == (not at <= point < back)


def test_a_cover_hides_all_of_the_thing() -> None:
    for clip in clips_of("hidden"):
        before, hidden = (clip.there(clip.schedule.answers[point]) for point in (0, clip.schedule.at))
        (small,) = (thing.box_px for thing in before if name_of(thing) == clip.actor)
        (cover,) = (thing.box_px for thing in hidden if name_of(thing) == clip.others[1])
        assert cover[0] < small[0]
        assert cover[1] < small[1]
        assert cover[2] > small[2]
        assert cover[3] > small[3]


def test_a_mover_is_elsewhere_at_each_answer() -> None:
    for clip in clips_of("moves"):
        boxes = [
            thing.box_px
            for frame in clip.schedule.answers
            for thing in clip.there(frame)
            if name_of(thing) == clip.actor
        ]
        assert len(boxes) == len(clip.schedule.answers)
        assert len(set(boxes[: clip.schedule.at])) == 1
        assert all(boxes[at] != boxes[at - 1] for at in range(clip.schedule.at, len(boxes)))


def test_two_things_swap_their_places() -> None:
    for clip in clips_of("swap"):
        before, after = (
            {
                name_of(thing): np.add(thing.box_px[:2], thing.box_px[2:]) / 2
                for thing in clip.there(clip.schedule.answers[point])
            }
            for point in (0, -1)
        )
        np.testing.assert_allclose(before[clip.actor], after[clip.others[0]], atol=12)
        np.testing.assert_allclose(before[clip.others[0]], after[clip.actor], atol=12)


def test_the_light_changes_and_stays_so() -> None:
    for clip in clips_of("light"):
        first, last = (clip.gains[clip.schedule.answers[point]] for point in (clip.schedule.at - 1, clip.schedule.at))
        assert first == 1.0
        assert 0.2 <= abs(last - first) <= 0.4
        assert set(clip.gains[clip.schedule.answers[clip.schedule.at] :]) == {last}


def test_pictures_show_the_event() -> None:
    clip = clips_of("leaves")[0]
    frames = clip.draw()
    assert len(frames) == clip.schedule.frames
    assert frames[0].shape == (clip.plan.size_px[1], clip.plan.size_px[0], 3)
    (box,) = (thing.box_px for thing in clip.there(0) if name_of(thing) == clip.actor)
    left, top, right, bottom = (int(edge) for edge in box)
    first, second, last = (
        frame[top:bottom, left:right].astype(int) for frame in (frames[0], frames[clip.schedule.answers[1]], frames[-1])
    )
    assert abs(first - last).mean() > 4 * abs(first - second).mean() + 5
