"""From answers to figures and comparisons."""

from __future__ import annotations

from typing import Any

import pytest

from evaluation.output import effects_table, table
from evaluation.report import at_equal_flops, at_equal_tokens, cells, effects, estimate, wilson
from tests.support.evaluation import row


def flops(total: int) -> dict[str, Any]:
    return {"flops": {"choose": 0, "encode": total, "prefill": 0, "decode": 0, "total": total}}


def test_a_cell_holds_accuracy_by_kind_and_its_costs() -> None:
    rows = [
        row(id="0", tokens=16, ttft_ms=10.0, peak_bytes=1_000_000, iou=0.5, covered=1.0),
        row(id="1", score=0.0, tokens=20, ttft_ms=30.0, peak_bytes=3_000_000),
        row(id="2", kind="describe", score=0.5, tokens=16, ttft_ms=11.0, iou=0.1, covered=0.0),
    ]
    (cell,) = cells(rows)
    assert cell["accuracy"] == 0.5
    assert cell["count"] == 3
    assert (cell["kinds"]["colour"]["low"], cell["kinds"]["colour"]["high"]) == wilson(1, 2)
    assert cell["kinds"]["describe"]["accuracy"] == 0.5
    assert cell["tokens"] == pytest.approx(52 / 3)
    assert cell["token_share"] == pytest.approx(52 / 192)
    assert cell["ttft_ms"] == 11.0
    assert cell["peak_mb"] == 3.0
    assert (cell["iou"], cell["covered"]) == (pytest.approx(0.3), 0.5)
    assert cell["flops"]["total"] == 100
    assert cell["asked_over_distractor"] is None
    assert cell["flips"] is None


def test_seeds_of_one_question_are_one_observation() -> None:
    rows = [row(id=str(n), seed=seed, score=float(seed == n)) for n in range(2) for seed in range(2)]
    (cell,) = cells(rows)
    assert (cell["seeds"], cell["count"], cell["accuracy"]) == (2, 2, 0.5)


def test_the_ratio_is_of_sums_over_questions_that_have_both() -> None:
    rows = [
        row(id="0", on_asked=1.0, on_distractor=0.25),
        row(id="1", on_asked=0.5, on_distractor=0.5),
        row(id="2", on_asked=1.0),
    ]
    (cell,) = cells(rows)
    assert cell["asked_over_distractor"] == 2.0
    assert (cell["on_asked"], cell["on_distractor"]) == (pytest.approx(2.5 / 3), 0.375)
    assert cells([row(on_asked=1.0, on_distractor=0.0)])[0]["asked_over_distractor"] is None


def test_flips_are_counted_inside_a_group_and_a_seed() -> None:
    texts = {"p": ["red", "Red.", "blue"], "q": ["two", "2"], "": ["x", "y"]}
    rows = [
        row(id=f"{group}{index}", group=group, text=text, seed=seed)
        for index in range(3)
        for seed in (0, 1)
        for group in texts
        for text in texts[group][index : index + 1]
    ]
    assert cells(rows)[0]["flips"] == pytest.approx(1 / 3)


def test_flips_leave_out_other_questions_and_other_right_answers() -> None:
    rows = [
        row(id="0", group="p", text="red"),
        row(id="1", group="p", text="blue", question="Which one?"),
        row(id="2", group="p", text="blue", question="Which one?", answers=["blue"]),
        row(id="3", group="p", text="red", question="Which one?", answers=["blue"]),
    ]
    assert cells(rows[:3])[0]["flips"] is None
    assert cells(rows)[0]["flips"] == 1


def test_stale_answers_and_what_was_appended_are_reported() -> None:
    rows = [
        row(id="0", tokens=30, kept=20, prefilled=15, stale=True),
        row(id="1", tokens=40, kept=30, prefilled=25, stale=False),
        row(id="2", tokens=6),
    ]
    (cell,) = cells(rows)
    assert (cell["stale"], cell["appended"], cell["prefilled"]) == (0.5, pytest.approx(26 / 3), pytest.approx(70 / 3))
    assert "0.50   23" in table([cell])


def test_questions_of_one_clip_are_drawn_together() -> None:
    scores = [1.0] * 8 + [0.0] * 8
    clustered, independent = estimate(scores, ["p"] * 8 + ["q"] * 8), estimate(scores)
    assert (clustered.mean, clustered.low, clustered.high, clustered.count) == (0.5, 0, 1, 16)
    assert 0.2 < independent.low < independent.high < 0.8
    assert estimate(scores, list(map(str, range(16)))) == independent
    grouped = [row(id=str(n), score=score, group="p" if n < 8 else "q") for n, score in enumerate(scores)]
    assert (cells(grouped)[0]["low"], cells(grouped)[0]["high"]) == (0, 1)
    arr_coc_rows = [dict(entry, strategy="arr-coc") for entry in grouped]
    (against,) = at_equal_tokens([*arr_coc_rows, *(dict(entry, score=0.0) for entry in grouped)])
    assert (against["difference"], against["low"], against["high"]) == (0.5, 0, 1)


def test_at_equal_tokens_the_same_questions_are_compared() -> None:
    rows = [
        *(row(strategy="arr-coc", id=str(n), score=1.0) for n in range(4)),
        *(row(strategy="grid", id=str(n), score=float(n % 2)) for n in range(4)),
        row(strategy="grid", id="9", score=0.0),
        row(strategy="grid", budget="10%", id="0", score=0.0),
        row(strategy="full", budget="100%", encode="full", id="0", score=1.0),
        row(strategy="evs", id="77", score=1.0),
        row(strategy="grid", suite="text", id="0", score=0.0),
    ]
    comparisons = {comparison["against"]: comparison for comparison in at_equal_tokens(rows)}
    assert set(comparisons) == {"grid (sparse)", "full (full)"}
    against_grid = comparisons["grid (sparse)"]
    assert (against_grid["difference"], against_grid["count"]) == (0.5, 4)
    assert against_grid["low"] <= 0.5 <= against_grid["high"]
    assert comparisons["full (full)"]["difference"] == 0.0


def test_at_equal_tokens_a_glance_is_compared_with_all_but_our_way_without() -> None:
    names = ("arr-coc", "arr-coc-glance", "grid")
    comparisons = at_equal_tokens([row(strategy=name, score=float(name != "grid")) for name in names])
    compared = [(comparison["strategy"], comparison["against"], comparison["difference"]) for comparison in comparisons]
    assert compared == [
        ("arr-coc", "arr-coc-glance (sparse)", 0.0),
        ("arr-coc", "grid (sparse)", 1.0),
        ("arr-coc-glance", "grid (sparse)", 1.0),
    ]


def test_at_equal_flops_a_curve_is_read_off_between_its_points() -> None:
    def cell(strategy: str, budget: str, total: int, score: float, **changes: Any) -> list[dict[str, Any]]:
        return [row(strategy=strategy, budget=budget, score=score, **flops(total), **changes)]

    cell_figures = cells(
        cell("arr-coc", "27%", 100, 0.9)
        + cell("grid", "10%", 10, 0.2)
        + cell("grid", "27%", 1000, 0.6)
        + cell("fastv", "10%", 400, 0.7)
        + cell("fastv", "27%", 500, 0.8)
        + cell("evs", "10%", 5, 0.3)
        + cell("evs", "27%", 50, 0.5)
        + cell("full", "100%", 2000, 1.0)
        + cell("grid", "27%", 100, 0.0, suite="text")
    )
    comparisons = {comparison["against"]: comparison for comparison in at_equal_flops(cell_figures)}
    assert set(comparisons) == {"grid (sparse)", "fastv (sparse)", "evs (sparse)"}
    assert comparisons["grid (sparse)"]["accuracy"] == pytest.approx(0.4)
    assert comparisons["grid (sparse)"]["difference"] == pytest.approx(0.5)
    assert comparisons["grid (sparse)"]["reached"]
    assert (comparisons["fastv (sparse)"]["accuracy"], comparisons["fastv (sparse)"]["reached"]) == (0.7, False)
    assert (comparisons["evs (sparse)"]["accuracy"], comparisons["evs (sparse)"]["reached"]) == (0.5, True)


def test_the_table_has_a_line_for_each_cell() -> None:
    lines = table(cells([row(), row(strategy="arr-coc", iou=0.25)])).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("suite")
    assert lines[2].split()[:4] == ["still", "arr-coc", "sparse", "27%"]
    assert "0.25" in lines[2]


def test_an_effect_is_reported_of_pairs_that_differ_in_one_part_alone() -> None:
    def rows(count: int = 4, **changes: Any) -> list[dict[str, Any]]:
        return [row(id=str(number), **changes) for number in range(count)]

    results = effects(
        [
            *rows(strategy="arr-coc-feedback", score=1.0, text="Two", covered=0.75),
            *rows(3, strategy="arr-coc-again", score=0.0, text="one", covered=0.5),
            row(strategy="arr-coc-again", id="3", score=1.0, text="2"),
            *rows(strategy="arr-coc-feedback", budget="10%"),
            *rows(strategy="arr-coc-again", budget="64"),
            *rows(strategy="arr-coc-feedback", encode="incremental", suite="text"),
            *rows(strategy="grid", encode="incremental", score=0.0),
            *rows(2, strategy="grid", score=0.0),
            *rows(strategy="evs", encode="prune"),
            *rows(strategy="evs", encode="incremental"),
        ]
    )
    pairs = [
        (effect["part"], effect["suite"], effect["strategy"], effect["budget"], effect["encode"]) for effect in results
    ]
    assert pairs == [
        ("feedback", "still", "arr-coc-feedback", "27%", "sparse"),
        ("incremental", "still", "grid", "27%", "incremental"),
    ]
    taught, unchanged = results
    assert (taught["difference"], taught["count"], taught["other_answers"]) == (0.75, 4, 0.75)
    assert 0 < taught["low"] <= 0.75 <= taught["high"] == 1
    assert taught["covered"] == 0.25
    assert (unchanged["difference"], unchanged["low"], unchanged["high"], unchanged["count"]) == (0, 0, 0, 2)
    assert (unchanged["covered"], unchanged["other_answers"]) == (None, 0)
    lines = effects_table(results).splitlines()
    low = f"{100 * taught['low']:+.1f}"
    expected = f"feedback still arr-coc-feedback sparse 27% +75.0 {low} to +100.0 +25.0 75 % 4"
    assert lines[1].split() == expected.split()
    assert len({len(line) for line in lines}) == 1


def test_seeds_are_averaged_before_an_effect_is_reported() -> None:
    rows = [
        row(strategy="random", seed=seed, encode=encode, score=score)
        for encode, scores in (("incremental", (1.0, 0.0)), ("sparse", (0.0, 0.0)))
        for seed, score in enumerate(scores)
    ]
    (effect,) = effects(rows)
    assert (effect["difference"], effect["count"]) == (0.5, 1)
