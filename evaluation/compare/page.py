"""The comparison as one HTML file without scripts, which asks nothing of a network."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

import numpy as np
from PIL import Image as Pillow

from arr_coc.texture.regions import ABSENT, shape_map, tile_boxes
from arr_coc.types import REGION_SHAPES
from evaluation.journal import Row
from evaluation.questions import EvalQuestion
from stream.protocol.picture_files import encode_jpeg
from stream.untrusted import printable, printable_lines
from training.clips.truth import Box, Image

GENERATOR = "evaluation.compare"
"""Name in the head of a page, by which it is known again."""

LONGEST_PX = 640
"""Of an embedded picture; a larger one is shrunk to it."""

DARKNESS = (0.0, 0.2, 0.34, 0.44, 0.5, 0.55)
"""Opacity of the black over a tile that is shown at each mipmap level, as on the page that compares."""

UNSEEN_DARKNESS = 0.7

STYLE = """
:root { color-scheme: light dark; --ink: #1a2230; --soft: #566074; --ground: #f3f5f8; --panel: #fff; --line: #cfd6e0;
  --good: #1a6b3c; --bad: #a8231c; --accent: #1d5fb4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf1; --soft: #a3adbd; --ground: #12161d; --panel: #1b212b;
  --line: #374151; --good: #74d69c; --bad: #ff9d94; --accent: #8cbcff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.45 system-ui, sans-serif; }
main, header { max-width: 78rem; margin: auto; padding: .8rem 1rem; }
h1 { font-size: 1.4rem; margin: .4rem 0; } h2 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .3rem 0; } .soft { color: var(--soft); overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { text-align: right; padding: .25rem .7rem; border-top: 1px solid var(--line); font-weight: 400; }
th:first-child { text-align: left; padding-left: 0; } thead th { color: var(--soft); max-width: 22rem; }
thead th, thead td { border-top: 0; vertical-align: bottom; }
form { display: flex; flex-wrap: wrap; gap: .4rem 1.4rem; padding: .5rem 0; background: var(--ground); }
@media (min-width: 60rem) { form { position: sticky; top: 0; z-index: 1; } }
fieldset { border: 0; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem .9rem; }
legend { float: left; padding: 0; margin-right: .8rem; color: var(--soft); }
article { background: var(--panel); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem;
  margin: .8rem 0; }
.sides { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .9rem; margin-top: .6rem; }
figure { margin: 0; } svg { display: block; width: 100%; height: auto; max-height: 60vh; background: #10141a;
  border-radius: .4rem; }
.text { font-size: 1.05rem; white-space: pre-wrap; overflow-wrap: anywhere; margin-top: .5rem; }
.verdict { font-weight: 650; } .right { color: var(--good); } .wrong { color: var(--bad); }
.outline { fill: none; stroke: #ffe25c; stroke-width: 1; vector-effect: non-scaling-stroke; }
.coarse { stroke: #96beff; }
.box { fill: none; stroke: #ff9e42; stroke-width: 3; vector-effect: non-scaling-stroke; }
.under { stroke: rgb(16 16 30 / .6); stroke-width: 5; }
body:has(#tiles:not(:checked)) .outline, body:has(#dim:not(:checked)) .dim,
body:has(#boxes:not(:checked)) .box { display: none; }
body:has(#other:checked) article:not(.other), body:has(#only-a:checked) article:not(.only-a),
body:has(#only-b:checked) article:not(.only-b) { display: none; }
@media (max-width: 40rem) { .sides { gap: .4rem; } article { padding: .5rem; } th, td { padding: .25rem .35rem; } }
"""


def page(figures: Mapping[str, Any], questions: Iterable[tuple[EvalQuestion, Row, Row]]) -> str:
    """Return the page of a comparison.

    Args:
        figures: As they are written as JSON.
        questions: Each question with A's row and B's, which have `regions` and `grid`.
    """
    articles = [
        _article(number, question, pair, rows)
        for number, ((question, *rows), pair) in enumerate(zip(questions, figures["answers"], strict=True))
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><title>A/B comparison</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta name="generator" content="{GENERATOR}">',
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">",
            f"<style>{STYLE}</style></head><body>",
            f"<header><h1>A/B comparison: {_line(figures['questions']['name'])}</h1>",
            *_summary(figures),
            "</header><main>",
            _choices(figures["answers"]),
            *articles,
            "</main></body></html>\n",
        ]
    )


def _summary(figures: Mapping[str, Any]) -> Iterator[str]:
    a, b = figures["a"], figures["b"]
    machine = figures["machine"]
    yield f'<p class="soft">{_line(str(machine["cpu"]))}, {_line(machine["device"])}</p>'
    yield '<div class="wide" tabindex="0" role="region" aria-label="Figures of both sides"><table><thead><tr><td></td>'
    yield from (f'<th scope="col">{name}: {_line(_title(side))}</th>' for name, side in (("A", a), ("B", b)))
    yield "</tr></thead><tbody>"
    for label, shown in (
        ("right, with 95 % interval", _accuracy),
        ("visual tokens", lambda side: f"{side['tokens']:.0f} ({100 * side['token_share']:.0f} %)"),
        ("first token", lambda side: f"{side['ttft_ms']:.0f} ms"),
        ("GFLOPs", lambda side: f"{side['flops']['total'] / 1e9:.3f}"),
        ("most memory", lambda side: f"{side['peak_mb']:.0f} MB"),
        ("boxes in full detail", lambda side: _percent(side["covered"])),
    ):
        yield f'<tr><th scope="row">{label}</th><td>{shown(a)}</td><td>{shown(b)}</td></tr>'
    yield "</tbody></table></div>"
    yield f"<p>{' '.join(sentences(figures))}</p>"


def sentences(figures: Mapping[str, Any]) -> Iterator[str]:
    """What a comparison says, in words: who is right more often, and how often the answers are the same."""
    difference, same = figures["difference"], figures["same_answers"]
    if difference is None:
        yield "No right answers are known."
    else:
        points = f"{100 * difference['difference']:+.1f} points of right answers"
        interval = f"{100 * difference['low']:+.1f} to {100 * difference['high']:+.1f}"
        doubt = ", which may be chance" if difference["low"] <= 0 <= difference["high"] else ""
        yield f"B against A: {points} (95 % interval {interval}{doubt})."
    yield (
        f"Both give the same answer in {100 * same['mean']:.0f} % of {same['count']} "
        f"({100 * same['low']:.0f} to {100 * same['high']:.0f} %)."
    )


def _title(side: Mapping[str, Any]) -> str:
    model = side["model"]
    parts = [side["strategy"], side["encode"], side["budget"], model["name"], model["dtype"]]
    parts.append(f"{model['allocator']} allocator")
    return " · ".join(dict.fromkeys(parts))


def _accuracy(side: Mapping[str, Any]) -> str:
    if side["accuracy"] is None:
        return "–"
    return f"{100 * side['accuracy']:.1f} % ({100 * side['low']:.0f} to {100 * side['high']:.0f})"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _choices(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Return what is shown: radio buttons and check boxes that the style sheet follows."""
    counts = {name: sum(name in _kinds(pair) for pair in pairs) for name in ("other", "only-a", "only-b")}
    choices = [("all", f"all {len(pairs)}"), ("other", f"different answers ({counts['other']})")]
    if any(pair["answers"] for pair in pairs):
        choices.append(("only-a", f"A does better ({counts['only-a']})"))
        choices.append(("only-b", f"B does better ({counts['only-b']})"))
    radios = [
        f'<label><input type="radio" name="show" id="{name}"{" checked" * (name == "all")}> {words}</label>'
        for name, words in choices
    ]
    checks = [
        f'<label><input type="checkbox" id="{name}" checked> {words}</label>'
        for name, words in (("tiles", "tiles"), ("dim", "dim what is coarse"), ("boxes", "boxes"))
    ]
    return (
        f"<form><fieldset><legend>Questions</legend>{''.join(radios)}</fieldset>"
        f"<fieldset><legend>Pictures</legend>{''.join(checks)}</fieldset></form>"
    )


def _kinds(pair: Mapping[str, Any]) -> list[str]:
    """Return the choices, beside all, that show a question."""
    kinds = [] if pair["same"] else ["other"]
    if pair["answers"] and pair["a"]["score"] != pair["b"]["score"]:
        kinds.append("only-a" if pair["a"]["score"] > pair["b"]["score"] else "only-b")
    return kinds


def _article(number: int, question: EvalQuestion, pair: Mapping[str, Any], rows: Sequence[Row]) -> str:
    height_px, width_px = question.frames[-1].shape[:2]
    boxes = question.boxes[-1] if question.boxes else ()
    known = f" · right: {_line(', '.join(dict.fromkeys(pair['answers'])))}" if pair["answers"] else ""
    frames = f" · newest of {len(question.frames)} frames" if len(question.frames) > 1 else ""
    # the picture is in the file once: the other side uses the first one's
    jpeg = _jpeg(question.frames[-1])
    image = f'<image id="p{number}" width="{width_px}" height="{height_px}" href="data:image/jpeg;base64,{jpeg}"/>'
    parts = [f'<article class="{" ".join(_kinds(pair))}"><h2>{_line(pair["question"])}</h2>']
    parts.append(f'<p class="soft">{_line(pair["id"])}{frames}{known}</p><div class="sides">')
    for name, row, picture in zip("ab", rows, (image, f'<use href="#p{number}"/>'), strict=True):
        answer = pair[name]
        label = f"{name.upper()}: {answer['tokens']} of {answer['of_tokens']} visual tokens"
        parts.append(
            f'<figure><svg viewBox="0 0 {width_px} {height_px}" role="img" aria-label="{label}">{picture}'
            f"{''.join(_allocation(row, width_px, height_px))}{_boxes(boxes)}</svg><figcaption>"
            f'<p class="text"><b>{name.upper()}</b> {_lines(answer["text"]) or "(an empty answer)"}</p>'
            f"{_facts(answer)}</figcaption></figure>"
        )
    return "".join([*parts, "</div></article>"])


def _facts(answer: Mapping[str, Any]) -> str:
    facts = [f"{answer['tokens']} of {answer['of_tokens']} tokens", f"first token {answer['ttft_ms']:.0f} ms"]
    if answer["covered"] is not None:
        facts.append(f"{_percent(answer['covered'])} of the boxes in full detail")
    verdict = ""
    if answer["score"] is not None:
        word = {1.0: "right", 0.0: "wrong"}.get(answer["score"], f"{100 * answer['score']:.0f} % right")
        verdict = f'<span class="verdict {"right" if answer["score"] >= 0.5 else "wrong"}">{word}</span> · '
    return f'<p class="soft">{verdict}{" · ".join(facts)}</p>'


def _allocation(row: Row, width_px: int, height_px: int) -> Iterator[str]:
    """Yield paths in tiles: what is darkened, one for each level, and the outlines of the regions."""
    rows, cols = row["grid"]
    regions = np.array(row["regions"], np.int32).reshape(-1, 3)
    shapes = shape_map(regions, (rows, cols))
    darkness = np.array([*(DARKNESS[max(sides)] for sides in REGION_SHAPES), UNSEEN_DARKNESS])[shapes]
    assert ABSENT == -1, "the last value is that of tiles without a region"
    yield f'<g transform="scale({width_px / cols:.4f} {height_px / rows:.4f})">'
    for value in np.unique(darkness[darkness > 0]):
        yield f'<path class="dim" fill-opacity="{value:.2f}" d="{_runs(darkness == value)}"/>'
    boxes = tile_boxes(regions, (rows, cols))
    fine = regions[:, 0] == 0
    for kind, chosen in (("outline coarse", boxes[~fine]), ("outline", boxes[fine])):
        if len(chosen):
            path = "".join(f"M{left} {top}H{right}V{bottom}H{left}z" for top, left, bottom, right in chosen.tolist())
            yield f'<path class="{kind}" d="{path}"/>'
    yield "</g>"


def _runs(mask: np.ndarray) -> str:
    """Return the tiles of a mask [rows, cols] as a path, one rectangle for each run in a row."""
    path = []
    for row, line in enumerate(mask.tolist()):
        at = 0
        for is_set, run in groupby(line):
            length = len(list(run))
            if is_set:
                path.append(f"M{at} {row}h{length}v1h-{length}z")
            at += length
    return "".join(path)


def _boxes(boxes: Sequence[Box]) -> str:
    rectangles = [
        f'x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}"'
        for left, top, right, bottom in boxes
    ]
    return "".join(f'<rect class="{kind}" {rectangle}/>' for rectangle in rectangles for kind in ("box under", "box"))


def _jpeg(image: Image) -> str:
    """Return a picture uint8 [H, W, 3] as JPEG, shrunk to `LONGEST_PX`, in base64."""
    small = Pillow.fromarray(image)
    small.thumbnail((LONGEST_PX, LONGEST_PX))
    return base64.b64encode(encode_jpeg(np.array(small))).decode()


def _line(text: str) -> str:
    return escape(printable(text))


def _lines(text: str) -> str:
    return escape(printable_lines(text).strip())
