"""The sets are what was frozen, and their figures are what the answers give."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from evaluation.errors import SuiteError
from evaluation.events.report import report, table
from evaluation.events.sets import CLIPS_A_KIND, FIRST_SEEDS, SetName, set_clips, set_hash, set_parameters
from evaluation.freeze import FROZEN
from evaluation.suites import SEEDS_OF_A_SUITE, SUITES, first_seed

WRITTEN = json.loads(FROZEN.read_text(encoding="utf-8"))
OTHER_LIBRARIES = {name for name, expected in WRITTEN["versions"].items() if version(name) != expected}


@pytest.mark.skipif(bool(OTHER_LIBRARIES), reason=f"frozen with other versions of {sorted(OTHER_LIBRARIES)}")
@pytest.mark.parametrize("name", FIRST_SEEDS)
def test_a_set_is_what_was_frozen(name: SetName) -> None:
    record = WRITTEN["events"][name]
    assert json.loads(json.dumps(set_parameters(name))) == record["parameters"]
    assert set_hash(name) == record["hash"]


def test_seeds_of_the_sets_are_no_other_suites() -> None:
    beyond = max(first_seed(name) for name in SUITES) + SEEDS_OF_A_SUITE
    assert beyond <= FIRST_SEEDS["choose"]
    assert FIRST_SEEDS["report"] - FIRST_SEEDS["choose"] == SEEDS_OF_A_SUITE


def test_a_limit_takes_the_first_clips_of_each_kind() -> None:
    clips = list(set_clips("choose", ("moves", "light"), 2))
    assert [(number, clip.kind) for number, clip in clips] == [(0, "moves"), (1, "moves"), (0, "light"), (1, "light")]
    ((_, same_clip),) = set_clips("choose", ("moves",), 1)
    assert same_clip.plan.things == clips[0][1].plan.things


@pytest.mark.parametrize("count", [0, CLIPS_A_KIND + 1])
def test_counts_out_of_range_are_refused(count: int) -> None:
    with pytest.raises(SuiteError, match="1 to 24 clips"):
        list(set_clips("choose", count=count))


def test_unknown_sets_are_refused() -> None:
    with pytest.raises(SuiteError, match="there are choose, report"):
        list(set_clips("other"))  # type: ignore[arg-type]


def test_figures_count_answers_before_and_after_apart() -> None:
    way = {"strategy": "memory", "budget": "27%", "condition": "plain", "kind": "moves", "asks": "count"}
    errors = {"ghosts": 0, "misses": 0, "inventions": 0}
    rows = [
        way | errors | {"after": False, "right": True},
        way | errors | {"after": True, "right": True},
        way | errors | {"after": True, "right": False, "ghosts": 2},
    ]
    by_kind, _, overall = report(rows)
    assert by_kind["of"] == "moves"
    assert (overall["answers"], overall["right_before"], overall["right_after"]) == (2, 1.0, 0.5)
    assert (overall["ghosts"], overall["misses"]) == (0.5, 0.0)
    assert table([overall]).splitlines()[-1] == "| memory 27% | plain | all | 2 | 100 | 50 | 50 | 0 | 0 |"
