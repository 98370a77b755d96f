"""Tables of the documents, made of the committed figures: `python -m evaluation.tables [--check]`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; the rest of a document is left as it is. With --check
nothing is written, and tables that differ from the figures end with status 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from arr_coc.types import SCORES
from evaluation.public import estimate

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
TRAINING = ROOT / "training" / "results"
DOCUMENTS = (
    *("README.md", "evaluation/README.md", "models/scenes-tiny/README.md", "models/scenes-stock/README.md"),
    *("docs/proof.md", "training/README.md"),
)
_BLOCK = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

SHARES = ("27%", "10%")
MEASURED = ("still", "video", "text")
REPORTED = (*MEASURED, "camouflage", "pan", "large", "stream")
COMPARED = (
    "smaller",
    "evs",
    "vidcom2",
    "querystream",
    "cdpruner",
    "divprune",
    "dart",
    "sparsevlm",
    "fastv",
    "pyramiddrop",
)
"""Strategies of others, at equal tokens."""

NONE = "–"

Line = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """A row of a table: its label, and the cells that it shows."""

    label: str
    results: str
    strategy: str
    budgets: tuple[str, ...] = SHARES

    def cells(self, suite: str) -> list[dict[str, Any] | None]:
        """The cells of a suite, one for each budget; None if that was not measured."""
        return [_cells(self.results).get((suite, self.strategy, budget)) for budget in self.budgets]

    def format_values(
        self, suite: str, value: Callable[[dict[str, Any]], float], digits: int = 0, unit: str = " %"
    ) -> str:
        """The values at each budget, in one field of a table.

        Args:
            suite: Name of the suite.
            value: The figure of a cell.
            digits: Decimal places.
            unit: Written after the last value.
        """
        values = [NONE if cell is None else f"{value(cell):.{digits}f}" for cell in self.cells(suite)]
        return NONE if set(values) == {NONE} else " / ".join(values) + unit


def right(cell: dict[str, Any]) -> float:
    """Right answers in per cent."""
    return 100 * float(cell["accuracy"])


def markdown(head: Sequence[str], lines: Iterable[Line]) -> str:
    """A table of Markdown, which ends with a line break."""
    rows = [tuple(head), ("---",) * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _of_suites(title: str, suites: Sequence[str], ways: Iterable[Way], digits: int = 0) -> str:
    return markdown(
        (title, *suites), ((way.label, *(way.format_values(suite, right, digits) for suite in suites)) for way in ways)
    )


def glances() -> str:
    """What a glance brings to an untrained allocator, beside a trained one."""
    ways = (
        Way("bundled, all tokens", "trained", "full", ("100%",)),
        Way("bundled, trained allocator", "trained", "arr-coc"),
        Way("bundled, untrained, with a glance", "untrained", "arr-coc-glance-drop"),
        Way("… the overview kept", "untrained", "arr-coc-glance-keep"),
        Way("… by similarity", "untrained", "arr-coc-glance-similarity"),
        Way("bundled, untrained, without", "untrained", "arr-coc"),
        Way("as a stock model, all tokens", "stock", "full", ("100%",)),
        Way("as a stock model, with a glance", "stock", "arr-coc-glance-drop"),
        Way("… the overview kept", "stock", "arr-coc-glance-keep"),
        Way("as a stock model, without", "stock", "arr-coc"),
    )
    return _of_suites("right, 27 / 10 %", REPORTED, ways)


ABLATED_BUDGET = "27%"
SCORE_ROWS = {
    **{f"{score} alone": f"only-{score}" for score in SCORES},
    **{f"without {score}": f"without-{score}" for score in SCORES},
}
BALANCE_ROWS = {"constant weights, the means of these": "fixed-mean", "equal weights": "fixed-equal"}
BUDGET_ROWS = {
    "the budget follows the spread of relevance": "adaptive",
    "… of relevance by 1 − ∏(1 − weight · score)": "amplified",
    "… and strength of relevance by the sum of weight · score": "scaled",
}


def ablation(results: str, strategy: str, full_label: str, rows: dict[str, str]) -> str:
    """Right answers of a strategy, and of its ablations, with their differences from it.

    Args:
        results: Name of the file in `results`.
        strategy: Name of the strategy.
        full_label: Label of its row.
        rows: Ends of the ablations' names, by label.
    """
    lines: list[Line] = []
    for label, name in {full_label: strategy, **{label: f"{strategy}-{end}" for label, end in rows.items()}}.items():
        way = Way(label, results, name, (ABLATED_BUDGET,))
        tokens = [cell["token_share"] for suite in MEASURED for cell in way.cells(suite) if cell is not None]
        share = f"{100 * sum(tokens) / len(tokens):.1f} %"
        difference = NONE if name == strategy else _pooled_difference(results, strategy, name)
        lines.append((label, *(way.format_values(suite, right) for suite in MEASURED), share, difference))
    counts = {suite: cell["count"] for (suite, name, _), cell in _cells(results).items() if name == strategy}
    heads = (f"{suite} ({counts[suite]})" if suite in counts else suite for suite in MEASURED)
    return markdown(("right", *heads, "tokens", "difference, points"), lines)


def _pooled_difference(results: str, strategy: str, other: str) -> str:
    """Right answers of another strategy minus those of this one over all suites, with the 95 % interval, in points."""
    pairs = [
        comparison
        for comparison in _results(results)["at_equal_tokens"]
        if (comparison["strategy"], comparison["against"], comparison["budget"])
        == (strategy, f"{other} (sparse)", ABLATED_BUDGET)
    ]
    count = sum(comparison["count"] for comparison in pairs)
    difference = -sum(comparison["count"] * comparison["difference"] for comparison in pairs) / count
    reach = (
        sum((comparison["count"] * (comparison["high"] - comparison["low"]) / 2) ** 2 for comparison in pairs) ** 0.5
        / count
    )
    return f"{_format_signed(100 * difference, plus=True)} ± {100 * reach:.1f}"


def sweep() -> str:
    """Right answers of `large` by kind of question and number of tokens."""
    budgets = ("64", "128", "256", "400")
    cells = _cells("sweep")
    full = cells["large", "full", "100%"]
    columns = [*(cells["large", "arr-coc", budget] for budget in budgets), full]
    lines: list[Line] = [
        (kind, *(f"{100 * cell['kinds'][kind]['accuracy']:.0f} %" for cell in columns))
        for kind in sorted(full["kinds"])
    ]
    lines.append(("**all**", *(f"**{right(cell):.0f} %**" for cell in columns)))
    scaled = (cells["large", "smaller", budget] for budget in budgets)
    lines.append(("all, of the picture scaled down", *(f"{right(cell):.0f} %" for cell in scaled), NONE))
    return markdown(("right, by tokens", *budgets, f"all, {full['tokens']:.0f}"), lines)


def channels() -> str:
    """Figures of allocators that were trained alike on each profile of channels."""
    ways = json.loads((TRAINING / "channels_3000.json").read_text("utf-8"))["ways"]
    lines: list[Line] = []
    for profile in ("core13", "full40"):
        columns: list[str] = []
        for past in ("nothing known", "after a glance"):
            scores = ways[profile][past]
            columns += (f"{100 * scores[share]:.0f} %" for share in ("recall", "recall_small"))
            columns.append(f"{scores['matched_iou']:.2f}")
        answers = Way("", f"channels-{profile}", "arr-coc", (ABLATED_BUDGET,))
        lines.append((f"`{profile}`", *columns, *(answers.format_values(suite, right) for suite in MEASURED)))
    figures = ("found of 25 %", "of 10 %", "IoU")
    after = (f"after a glance: {figures[0]}", *figures[1:])
    return markdown(("", *figures, *after, *(f"right, `{suite}`" for suite in MEASURED)), lines)


def reported(results: str, *others: Way) -> str:
    """Right answers on the set `report`, by suite and strategy, and of `others`, which other files hold."""
    ways = (
        Way("`full` (100 %)", results, "full", ("100%",)),
        *(Way(f"`{name}`", results, name) for name in _names(results) if name != "full"),
        *others,
    )
    return _of_suites("right, 27 / 10 %", REPORTED, ways)


STOCK_OTHERS = (
    Way("`arr-coc`, all tokens encoded (`prune`)", "stock-prune", "arr-coc"),
    Way("`memory`", "stock-stream", "memory"),
    Way("`last-4` (100 %)", "stock-stream", "last-4", ("100%",)),
)


def baselines(results: str) -> str:
    """This project minus each baseline at equal tokens, in points, with the interval of the pairs."""
    compared = {
        (comparison["suite"], comparison["against"].split(" (")[0], comparison["budget"]): comparison
        for comparison in _results(results)["at_equal_tokens"]
        if comparison["strategy"] == "arr-coc"
    }
    lines: list[Line] = []
    for name in (name for name in COMPARED if ("still", name, SHARES[0]) in compared):
        for budget in SHARES:
            differences = (_difference(compared[suite, name, budget]) for suite in REPORTED)
            lines.append((f"`{name}`" if budget == SHARES[0] else "", budget.replace("%", " %"), *differences))
    return markdown(("`arr-coc` minus", "tokens", *REPORTED), lines)


def _difference(comparison: dict[str, Any]) -> str:
    """Points with their interval; bold if that does not hold 0."""
    low, high = (_format_signed(100 * comparison[end], digits=0) for end in ("low", "high"))
    points = f"{_format_signed(100 * comparison['difference'], digits=0, plus=True)} ({low} to {high})"
    return f"**{points}**" if comparison["low"] > 0 or comparison["high"] < 0 else points


def feedback() -> str:
    """Gain by feedback from answers, in points, with the interval of the pairs."""
    lines: list[Line] = []
    for label, results in (
        ("untrained, as for any other model", "feedback-untrained"),
        ("trained for this model", "feedback"),
    ):
        effects = {
            (effect["suite"], effect["budget"]): effect
            for effect in _results(results)["effects"]
            if effect["part"] == "feedback"
        }
        for budget in SHARES:
            points = (_points(effects[suite, budget]) for suite in MEASURED)
            lines.append((label if budget == SHARES[0] else "", budget.replace("%", " %"), *points))
    return markdown(("allocator", "tokens", *MEASURED), lines)


def _points(effect: dict[str, Any]) -> str:
    """A difference with its interval; bold if that is above 0."""
    low, high = (_format_signed(100 * effect[end]) for end in ("low", "high"))
    points = f"{_format_signed(100 * effect['difference'], plus=True)} ({low} to {high})"
    bold = f"**{points}**" if effect["low"] > 0 else points
    return f"{bold}, shown {_format_signed(100 * effect['covered'], digits=0, plus=True)}"


def _format_signed(number: float, digits: int = 1, *, plus: bool = False) -> str:
    digits_only = f"{abs(number):.{digits}f}"
    if float(digits_only) == 0:
        return digits_only
    return f"− {digits_only}" if number < 0 else f"+ {digits_only}" if plus else digits_only


def presence() -> str:
    """Yes answers of a model about present and absent things, before and after calibration."""
    figures = _results("presence")
    labels = {
        "present": "it is there",
        "absent": "another of its kind",
        "colour": "a colour of no scene",
        "shape": "a shape of no scene",
        "absurd": "something absurd",
    }
    lines = []
    for kind, label in labels.items():
        shares = [
            figures[stage][kind][name]
            for stage in ("before", "after")
            for name in ("true_yes" if kind == "present" else "false_yes", "surely")
        ]
        auc = figures["auc"].get(kind)
        cells = (*(f"{100 * share:.0f} %" for share in shares), NONE if auc is None else f"{auc:.3f}")
        lines.append((label, *cells, f"{100 * figures['unseen'][kind]:.0f} %"))
    return markdown(("", "own odds: yes", "surely", "calibrated: yes", "surely", "AUC", "refused by `--until`"), lines)


def real() -> str:
    """Shares of labelled boxes of real pictures that are seen, by strategy; at each budget."""
    cells = {(cell["strategy"], cell["budget"], cell["class"]): cell for cell in _results("real")["cells"]}
    names = ("face", "hand", "person", "animal", "vehicle", "words", "moving", "object")
    lines = []
    for strategy in dict.fromkeys(strategy for strategy, _, _ in cells):
        by_budget = [cells[strategy, budget, "all"] for budget in SHARES]
        intervals = [f"{100 * cell['full']['low']:.0f}–{100 * cell['full']['high']:.0f}" for cell in by_budget]
        looks = [", ".join(f"{100 * cell[look]['mean']:.0f}" for cell in by_budget) for look in ("full", "half", "any")]
        of_class = [
            ", ".join(f"{100 * cells[strategy, budget, name]['full']['mean']:.0f}" for budget in SHARES)
            for name in names
        ]
        lines.append((f"`{strategy}`", f"{looks[0]} % ({', '.join(intervals)})", *looks[1:], *of_class))
    return markdown(("", "full", "half", "any", *names), lines)


def costs() -> str:
    """Right answers of a model trained for this project's tokens, and of one as it comes, by what it is shown."""
    suites = ("still", "text", "camouflage", "video")
    lines = []
    for label, strategy, budgets in (
        ("all tokens", "full", ("100%",)),
        ("ARR-COC", "arr-coc", SHARES),
        ("the picture scaled down", "smaller", SHARES),
        ("VidCom2, which encodes all tokens first", "vidcom2", SHARES),
    ):
        trained, stock = (Way(label, results, strategy, budgets) for results in ("trained", "stock"))
        gflops = trained.format_values("still", lambda cell: cell["flops"]["total"] / 1e9, 1, unit="")
        of_suites = (f"{_plain(trained, suite)} · {_plain(stock, suite)}" for suite in suites)
        lines.append((label, *of_suites, gflops))
    return markdown(("shown to the model", *(f"`{suite}`" for suite in suites), "GFLOPs, `still`"), lines)


def _plain(way: Way, suite: str) -> str:
    return way.format_values(suite, right, unit="")


def kinds(results: str) -> str:
    """Right answers of `still` by kind of question, the best known first."""
    labels = {
        "number": "which number",
        "word": "which word",
        "count": "how many",
        "exists": "is there a …",
        "describe": "describe (share of its facts)",
    }
    ways = (Way("all", results, "full", ("100%",)), Way("ours", results, "arr-coc"))
    measured = [cell for way in ways for cell in way.cells("still") if cell is not None]
    order = sorted(measured[0]["kinds"], key=lambda kind: -measured[0]["kinds"][kind]["accuracy"])
    lines = [
        (labels.get(kind, kind), *(f"{100 * cell['kinds'][kind]['accuracy']:.0f} %" for cell in measured))
        for kind in order
    ]
    lines.append(("**all**", *(f"**{right(cell):.0f} %**" for cell in measured)))
    return markdown(("`still`, kind of question", "all tokens", "27 %", "10 %"), lines)


PAST = ("before", "long before")
"""Kinds of the suite `stream` that ask about what is no longer to be seen."""


def stream(*parts: tuple[str, Callable[[Any], str]]) -> str:
    """Figures of the suite `stream`, a row for each strategy and budget; of baselines that were measured later, on a
    machine with more to do, without times."""
    cells = list(_results("stream")["cells"])
    measured = {(cell["strategy"], cell["budget"]) for cell in cells}
    baseline_cells = (cell | {"ttft_ms": None} for cell in _results("stream-baselines")["cells"])
    cells += [cell for cell in baseline_cells if (cell["strategy"], cell["budget"]) not in measured]
    lines = ((f"`{cell['strategy']}`, {cell['budget']}", *(show(cell) for _, show in parts)) for cell in cells)
    return markdown(("", *(head for head, _ in parts)), lines)


def _of_kinds(*names: str) -> Callable[[Any], str]:
    """Right answers in per cent over some kinds of questions."""

    def percent(cell: Any) -> str:
        kinds = [cell["kinds"][name] for name in names]
        return f"{100 * sum(kind['accuracy'] * kind['count'] for kind in kinds) / sum(k['count'] for k in kinds):.0f}"

    return percent


def stream_right() -> str:
    """Right answers by what a clip tests, in per cent."""
    parts = (
        *(("still", ("still",)), ("detail", ("detail",)), ("moving", ("moving",)), ("sign", ("sign",))),
        *(("pan", ("pan",)), ("after a cut", ("after the cut", "gone")), ("another question", ("questions",))),
        *(("event", ("event",)), ("before", ("before",)), ("long before", ("long before",))),
    )
    return stream(*((head, _of_kinds(*names)) for head, names in parts))


def stream_costs() -> str:
    """Right answers about now and before, stale answers, and what an answer costs."""
    kinds = _results("stream")["cells"][0]["kinds"]
    return stream(
        ("now, %", _of_kinds(*(kind for kind in kinds if kind not in PAST))),
        ("before, %", _of_kinds(*PAST)),
        ("all, 95 %", lambda cell: f"{100 * cell['low']:.0f} to {100 * cell['high']:.0f}"),
        ("stale, %", lambda cell: f"{100 * cell['stale']:.0f}"),
        ("visual tokens", lambda cell: f"{cell['tokens']:.0f}"),
        ("appended", lambda cell: f"{cell['appended']:.0f}"),
        ("prefilled", lambda cell: f"{cell['prefilled']:.0f}"),
        ("GFLOPs", lambda cell: f"{cell['flops']['total'] / 1e9:.2f}"),
        ("first token, ms", lambda cell: NONE if cell["ttft_ms"] is None else f"{cell['ttft_ms']:.0f}"),
    )


SHADOW_SUITES = ("video", "stream")


def shadow() -> str:
    """Budgets that shadow checks move, beside fixed ones of equal tokens or FLOPs; one check in 1, 5 and 20 answers."""
    orders = {"shuffled": "by chance", "blocks": "easy and hard by turns"}
    lines = []
    for suite in SHADOW_SUITES:
        of = _results("shadow")[suite]["acting"]
        for percent, order in dict.fromkeys((cell["percent"], cell["order"]) for cell in of):
            cells = [cell for cell in of if (cell["percent"], cell["order"]) == (percent, order)]
            lines.append(
                (
                    f"`{suite}`, {percent:g} %, {orders[order]}",
                    _each(cells, lambda cell: f"{100 * cell['right']:.1f}"),
                    _each(cells, lambda cell: f"{cell['tokens']:.0f}"),
                    _each(cells, lambda cell: f"{cell['raises']:.1f}"),
                    _each(cells, lambda cell: _format_signed(cell["gain at equal tokens"], plus=True)),
                    _each(cells, lambda cell: _format_signed(cell["gain at equal gflops"], plus=True)),
                )
            )
    head = ("suite, configured budget, order", "right, %", "tokens", "raises", "points at equal tokens")
    return markdown((*head, "at equal FLOPs"), lines)


def _each(cells: Iterable[Any], show: Callable[[Any], str]) -> str:
    return " / ".join(map(show, cells))


def shadow_compare() -> str:
    """AUC of scores by which two answers count as the same."""
    of = [_results("shadow")[suite]["compare"] for suite in SHADOW_SUITES]
    lines = [(name, *(f"{comparison['auc'][name]:.2f}" for comparison in of)) for name in of[0]["auc"]]
    pairs = [
        f"`{suite}`, {comparison['pairs'][0]} and {comparison['pairs'][1]} pairs"
        for suite, comparison in zip(SHADOW_SUITES, of, strict=True)
    ]
    return markdown(("score", *pairs), lines)


TABLES: dict[str, Callable[[], str]] = {
    "glances": glances,
    "scores-trained": lambda: ablation("scores", "arr-coc", "all three", SCORE_ROWS),
    "scores-glanced": lambda: ablation("scores-glanced", "arr-coc-glance", "all three", SCORE_ROWS),
    "balance-trained": lambda: ablation("balance", "arr-coc", "weights of the balancer", BALANCE_ROWS),
    "balance-glanced": lambda: ablation("balance-glanced", "arr-coc-glance", "weights of the balancer", BALANCE_ROWS),
    "budgets-trained": lambda: ablation("balance", "arr-coc", "27 % of each picture", BUDGET_ROWS),
    "budgets-glanced": lambda: ablation("balance-glanced", "arr-coc-glance", "27 % of each picture", BUDGET_ROWS),
    "sweep": sweep,
    "channels": channels,
    "trained": lambda: reported("trained"),
    "stock": lambda: reported("stock", *STOCK_OTHERS),
    "baselines": lambda: baselines("trained"),
    "baselines-stock": lambda: baselines("stock"),
    "feedback": feedback,
    "presence": presence,
    "real": real,
    "costs": costs,
    "kinds": lambda: kinds("trained"),
    "kinds-stock": lambda: kinds("stock"),
    "stream-right": stream_right,
    "stream-costs": stream_costs,
    "shadow": shadow,
    "shadow-compare": shadow_compare,
    "estimate": lambda: markdown(estimate.HEAD, estimate.rows()),
}


@cache
def _results(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return figures


@cache
def _cells(name: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Cells by suite, strategy and budget."""
    return {(cell["suite"], cell["strategy"], cell["budget"]): cell for cell in _results(name)["cells"]}


def _names(results: str) -> list[str]:
    """Strategies in the order in which they were measured."""
    return list(dict.fromkeys(strategy for _, strategy, _ in _cells(results)))


def fill_tables(text: str) -> str:
    """A document with its tables made anew. Raises KeyError for a table that there is not."""
    return _BLOCK.sub(lambda block: block[1] + TABLES[block["name"]]() + block[3], text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say which documents differ")
    only_check = parser.parse_args(arguments).check
    outdated_names = []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text("utf-8")
        new_text = fill_tables(text)
        if new_text != text:
            outdated_names.append(name)
            if not only_check:
                path.write_text(new_text, "utf-8")
    for name in outdated_names:
        print(f"{name}: its tables {'differ from' if only_check else 'were made anew from'} the figures")
    return 1 if only_check and outdated_names else 0


if __name__ == "__main__":
    sys.exit(main())
