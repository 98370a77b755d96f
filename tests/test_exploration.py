from __future__ import annotations

import numpy as np

from arr_coc.exploration import INFORMATION_BAND, Exploration

INFORMATION = np.array([[0.2, 0.4, 0.8]], np.float32)


def levels(*values: int) -> np.ndarray:
    return np.array([values], np.int8)


def test_at_first_information_alone_counts() -> None:
    exploration = Exploration()
    exploration.shown(levels(0, 0, 0))
    assert exploration.neglect(INFORMATION).tolist() == INFORMATION.tolist()


def test_what_was_shown_waits_and_what_was_not_grows() -> None:
    exploration = Exploration()
    exploration.neglect(INFORMATION)
    for _ in range(3):
        exploration.shown(levels(1, -1, 0))
    neglect = exploration.neglect(INFORMATION)
    assert neglect.tolist() == [[4 * INFORMATION[0, 0], 4 * INFORMATION[0, 1], INFORMATION[0, 2]]]


def test_every_tile_has_its_turn() -> None:
    exploration, seen = Exploration(), set()
    for _ in range(12):
        turn = int(exploration.neglect(INFORMATION).argmax())
        seen.add(turn)
        exploration.shown(levels(*(0 if tile == turn else -1 for tile in range(3))))
    assert seen == {0, 1, 2}


def test_it_turns_with_answers_and_not_with_noise() -> None:
    exploration, rng = Exploration(), np.random.default_rng(0)
    neglect = exploration.neglect(INFORMATION)
    for _ in range(20):
        noise = rng.uniform(-0.9, 0.9, (1, 3)).astype(np.float32) * INFORMATION_BAND
        assert exploration.neglect(INFORMATION + noise) is neglect
    assert exploration.neglect(INFORMATION + 2 * INFORMATION_BAND) is not neglect
    exploration.shown(levels(0, 0, 0))
    assert exploration.neglect(INFORMATION) is not neglect


def test_it_is_carried_along() -> None:
    exploration = Exploration()
    exploration.carry(0, 1)
    exploration.neglect(INFORMATION)
    exploration.shown(levels(0, 0, 0))
    exploration.carry(0, 1)
    assert exploration.neglect(np.ones((1, 3), np.float32)).tolist() == [[2, 1, 1]]
