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

from evaluation import readme_tables
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
REAL_CLASSES = ("face", "person", "animal", "words", "moving")

COMPARED = (
    *("smaller", "evs", "vidcom2", "querystream", "cdpruner", "divprune", "dart", "sparsevlm", "fastv"),
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
        self,
        suite: str,
        value: Callable[[dict[str, Any]], float],
        digits: int = 0,
        unit: str = " %",
        between: str = " / ",
    ) -> str:
        """The values at each budget, in one field of a table.

        Args:
            suite: Name of the suite.
            value: The figure of a cell.
            digits: Decimal places.
            unit: Written after the last value.
            between: Written between two values.
        """
        values = [NONE if cell is None else f"{value(cell):.{digits}f}" for cell in self.cells(suite)]
        return NONE if set(values) == {NONE} else between.join(values) + unit


def right(cell: dict[str, Any]) -> float:
    """Right answers in per cent."""
    return 100 * float(cell["accuracy"])


def markdown(head: Sequence[str], lines: Iterable[Line]) -> str:
    """A table of Markdown, which ends with a line break."""
    rows = [tuple(head), ("---",) * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _of_suites(way: Way) -> Line:
    """A row of the suites of the set `report`: right answers in per cent."""
    return (way.label, *(way.format_values(suite, right, unit="", between=", ") for suite in REPORTED))


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
        answers = Way("", f"channels-{profile}", "arr-coc", SHARES[:1])
        lines.append((f"`{profile}`", *columns, *(answers.format_values(suite, right) for suite in MEASURED)))
    figures = ("found of 25 %", "of 10 %", "IoU")
    after = (f"after a glance: {figures[0]}", *figures[1:])
    return markdown(("", *figures, *after, *(f"right, `{suite}`" for suite in MEASURED)), lines)


UNLISTED = (
    *("grid", "scaled-crops", "scaled-crops-25", "scaled-tiles-25", "arr-coc-mixed", "arr-coc-glance-keep"),
    "arr-coc-fixation",
)
"""Strategies that the tables leave out: variants that are behind their neighbours, and `grid`, which is as `random`."""


def reported(results: str, *others: Way) -> str:
    """Right answers on the set `report`, by suite and strategy, and of `others`, which other files hold.

    Bold: `arr-coc` is better at equal tokens beyond noise, by the interval of the pairs. Italic: it is worse.
    """
    marks = {
        (comparison["suite"], comparison["against"].split(" (")[0], comparison["budget"]): _mark(comparison)
        for comparison in _results(results)["at_equal_tokens"]
        if comparison["strategy"] == "arr-coc"
    }
    lines: list[Line] = []
    for name in _names(results):
        if name == "full" or name in UNLISTED:
            continue
        fields = []
        for suite in REPORTED:
            values = (
                f"{mark}{right(cell):.0f}{mark}"
                for budget in SHARES
                for cell, mark in ((_cells(results)[suite, name, budget], marks.get((suite, name, budget), "")),)
            )
            fields.append(", ".join(values))
        lines.append((f"`{name}`", *fields))
    full = Way("`full` (100 %)", results, "full", ("100%",))
    others_lines = [_of_suites(way) for way in others]
    return markdown(("right in %, at 27, 10 %", *REPORTED), [_of_suites(full), *lines, *others_lines])


def _mark(comparison: dict[str, Any]) -> str:
    if comparison["low"] > 0:
        return "**"
    return "_" if comparison["high"] < 0 else ""


STOCK_OTHERS = (
    Way("`arr-coc`, all tokens encoded (`prune`)", "stock-prune", "arr-coc"),
    Way("`memory`", "stock-stream", "memory"),
    Way("`last-4` (100 %)", "stock-stream", "last-4", ("100%",)),
)


def real() -> str:
    """Shares of labelled boxes of real pictures that are seen in full resolution, by strategy; at each budget."""
    cells = {(cell["strategy"], cell["budget"], cell["class"]): cell for cell in _results("real")["cells"]}
    lines = []
    for strategy in ("topk", "mixed", "foveated", "centre", "spectral-residual", "ceiling"):
        by_budget = [cells[strategy, budget, "all"]["full"] for budget in SHARES]
        intervals = [f"{100 * share['low']:.0f}–{100 * share['high']:.0f}" for share in by_budget]
        of_class = [
            ", ".join(f"{100 * cells[strategy, budget, name]['full']['mean']:.0f}" for budget in SHARES)
            for name in REAL_CLASSES
        ]
        means = ", ".join(f"{100 * share['mean']:.0f}" for share in by_budget)
        lines.append((f"`{strategy}`", f"{means} ({', '.join(intervals)})", *of_class))
    return markdown(("in %, at 27, 10 %", "all", *REAL_CLASSES), lines)


def costs() -> str:
    """Right answers of a model trained for this project's tokens, and of one as it comes, in all suites at both
    budgets; beside it the best other way at each budget, another one each time. Bold: fewer than with all tokens."""
    lines = []
    for suite in REPORTED:
        line: list[str] = [f"`{suite}`"]
        for results in ("trained", "stock"):
            everything = right(_cells(results)[suite, "full", "100%"])
            line.append(f"{everything:.0f}")
            line.append(
                " / ".join(_below(right(_cells(results)[suite, "arr-coc", share]), everything) for share in SHARES)
            )
        line.append(" / ".join(_best_other("stock", suite, share) for share in SHARES))
        lines.append(tuple(line))
    head = ("suite", "trained for it: all tokens", "27 / 10 %", "as it comes: all tokens", "27 / 10 %")
    return markdown((*head, "best of ten others at 27 / 10 %"), lines)


def _below(value: float, everything: float) -> str:
    text = f"{value:.0f}"
    return f"**{text}**" if round(value) < round(everything) else text


def _best_other(results: str, suite: str, share: str) -> str:
    cells = _cells(results)
    measured = {name: cells[suite, name, share] for name in COMPARED if (suite, name, share) in cells}
    name = max(measured, key=lambda name: right(measured[name]))
    return f"{right(measured[name]):.0f} {name}"


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


def stream() -> str:
    """Right answers of the suite `stream` by what is asked, stale answers, and what an answer costs."""
    ways = (
        Way("`full` (100 %)", "stream", "full", ("100%",)),
        *(Way(f"`{name}`", "stream", name) for name in ("arr-coc", "memory")),
        Way("`last-4` (100 %)", "stream", "last-4", ("100%",)),
        *(Way(f"`{name}`", "stream-baselines", name) for name in ("evs", "cdpruner", "dart", "vidcom2")),
    )
    kinds = _results("stream")["cells"][0]["kinds"]
    parts: tuple[tuple[str, Callable[[Any], float], int], ...] = (
        ("all, %", right, 0),
        ("now", _of_kinds(*(kind for kind in kinds if kind not in PAST)), 0),
        ("before", _of_kinds(*PAST), 0),
        ("moving", _of_kinds("moving"), 0),
        ("sign", _of_kinds("sign"), 0),
        ("stale", lambda cell: 100 * float(cell["stale"]), 0),
        ("prefilled tokens", lambda cell: float(cell["prefilled"]), 0),
        ("GFLOPs", lambda cell: float(cell["flops"]["total"]) / 1e9, 2),
    )
    lines = (
        (way.label, *(way.format_values("stream", value, digits, unit="", between=", ") for _, value, digits in parts))
        for way in ways
    )
    return markdown(("at 27, 10 %", *(head for head, _, _ in parts)), lines)


def _of_kinds(*names: str) -> Callable[[Any], float]:
    """Right answers in per cent over some kinds of questions."""

    def percent(cell: Any) -> float:
        kinds = [cell["kinds"][name] for name in names]
        return float(100 * sum(kind["accuracy"] * kind["count"] for kind in kinds) / sum(k["count"] for k in kinds))

    return percent


TABLES: dict[str, Callable[[], str]] = {
    "channels": channels,
    "trained": lambda: reported("trained"),
    "stock": lambda: reported("stock", *STOCK_OTHERS),
    "real": real,
    "costs": costs,
    "models": lambda: markdown(readme_tables.MODEL_HEAD, readme_tables.models()),
    "speed": lambda: markdown(readme_tables.SPEED_HEAD, readme_tables.speed()),
    "kinds": lambda: kinds("trained"),
    "kinds-stock": lambda: kinds("stock"),
    "stream": stream,
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
