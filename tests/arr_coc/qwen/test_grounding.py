"""Places in answers: Qwen's formats, and whatever else a model or a liar may write."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.qwen.grounding import (
    CHARS_MAX,
    GROUNDED,
    LABEL_CHARS_MAX,
    LABELS_NAMED,
    THINGS_MAX,
    LocatedThing,
    LocatedThings,
    located_things,
    words_for,
)

THOUSANDTHS = (1000.0, 1000.0)

CAT = LocatedThing("cat", (0.1, 0.2, 0.3, 0.4), None)
CAT_JSON = '{"bbox_2d": [100, 200, 300, 400], "label": "cat"}'


def things(text: str, extent: tuple[float, float] = THOUSANDTHS) -> tuple[LocatedThing, ...]:
    return located_things(text, extent).things


@pytest.mark.parametrize(
    "text",
    [
        CAT_JSON,
        f"[{CAT_JSON}]",
        f"```json\n[\n\t{CAT_JSON}\n]\n```",
        f"```\n[{CAT_JSON}]\n```",
        f"Here is the cat: [{CAT_JSON}] It sleeps.",
        f'{{"objects": [{CAT_JSON}]}}',
        f'```json\n[{CAT_JSON},\n{{"bbox_2d": [500, 6',
        f"[{CAT_JSON}, {{'bbox_2d': [1, 2, 3, 4]}}]",
        f'{{"note": [1, 2, {CAT_JSON}',
        "<|object_ref_start|>cat<|object_ref_end|><|box_start|>(100,200),(300,400)<|box_end|>",
        "the <|object_ref_start|>cat<|object_ref_end|> <|box_start|>( 100, 200 ) , (300,400)",
        "<|object_ref_start|>cat<|object_ref_end|><|box_start|>(100,200),(300,400)<|box_end|><|box_start|>(1,2),(3",
    ],
)
def test_a_box_is_read_whatever_is_around_it(text: str) -> None:
    assert GROUNDED.search(text)
    assert things(text) == (CAT,)


def test_points_scores_and_several_boxes_of_one_label() -> None:
    text = """[{"point_2d": [500, 250], "label": "nose", "score": 0.75},
        {"bbox_2d": [0, 0, 500, 1000], "point_2d": [10, 20]},
        {"bbox_2d": [[0, 0, 10, 10], [10, 10, 20, 20]], "label": "pair", "confidence": 2},
        {"bbox_2d": [0, 0, 10, 10], "text_content": "EXIT"}]"""
    assert things(text) == (
        LocatedThing("nose", None, (0.5, 0.25), 0.75),
        LocatedThing("", (0.0, 0.0, 0.5, 1.0), (0.01, 0.02)),
        LocatedThing("pair", (0.0, 0.0, 0.01, 0.01), None),
        LocatedThing("pair", (0.01, 0.01, 0.02, 0.02), None),
        LocatedThing("EXIT", (0.0, 0.0, 0.01, 0.01), None),
    )


def test_several_marked_boxes_and_points() -> None:
    text = (
        "<|object_ref_start|>men<|object_ref_end|><|box_start|>(0,0),(10,10)<|box_end|><|box_start|>(500,500)<|box_end|>"
        " and <|object_ref_start|>a dog<|object_ref_end|><|box_start|>(10,10),(20,20)(20,20),(30,30)<|box_end|>"
    )
    assert [(thing.label, thing.box, thing.point) for thing in things(text)] == [
        ("men", (0.0, 0.0, 0.01, 0.01), None),
        ("men", None, (0.5, 0.5)),
        ("a dog", (0.01, 0.01, 0.02, 0.02), None),
        ("a dog", (0.02, 0.02, 0.03, 0.03), None),
    ]


def test_the_extent_is_the_picture_in_the_answer_s_coordinates() -> None:
    (thing,) = things('{"bbox_2d": [64, 36, 128, 72], "label": "x"}', (640.0, 360.0))
    assert thing.box == pytest.approx((0.1, 0.1, 0.2, 0.2))


@pytest.mark.parametrize(
    ("numbers", "box"),
    [
        ([300, 400, 100, 200], (0.1, 0.2, 0.3, 0.4)),
        ([300, 200, 100, 400], (0.1, 0.2, 0.3, 0.4)),
        ([-50, 900, 100, 1500], (0.0, 0.9, 0.1, 1.0)),
        ([-9e300, -9e300, 9e300, 9e300], (0.0, 0.0, 1.0, 1.0)),
    ],
)
def test_boxes_are_turned_and_clipped(numbers: list[float], box: tuple[float, ...]) -> None:
    assert things(json.dumps({"bbox_2d": numbers})) == (LocatedThing("", box, None),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "item",
    [
        '{"bbox_2d": [1100, 100, 1200, 200]}',
        '{"bbox_2d": [-20, 0, -10, 10]}',
        '{"bbox_2d": [10, 10, 10, 20]}',
        '{"bbox_2d": [NaN, 0, 10, 10]}',
        '{"bbox_2d": [0, 0, Infinity, 10]}',
        '{"bbox_2d": [0, 0, 1e999, 10]}',
        f'{{"bbox_2d": [0, 0, {"9" * 3000}, 10]}}',
        '{"bbox_2d": [true, false, true, true]}',
        '{"bbox_2d": ["1", "2", "3", "4"]}',
        '{"bbox_2d": [1, 2, 3]}',
        '{"bbox_2d": "everywhere"}',
        '{"bbox_2d": null}',
        '{"bbox_2d": [[[1, 2, 3, 4]]]}',
        '{"point_2d": [1001, 5]}',
        '{"point_2d": []}',
    ],
)
def test_places_outside_the_picture_are_left_out_and_counted(item: str) -> None:
    assert located_things(f"[{item}, {CAT_JSON}]", THOUSANDTHS) == LocatedThings((CAT,), unusable=1)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
        ("a\x1b[31mb", "a\x1b[31mb"),
        ("猫", "猫"),
        ("x" * 1000, "x" * LABEL_CHARS_MAX),
        ("\ud800", "?"),
        (5, ""),
        (None, ""),
        ([], ""),
    ],
)
def test_a_label_is_text_of_limited_length_that_utf_8_can_carry(label: Any, expected: str) -> None:
    (thing,) = things(json.dumps({"bbox_2d": [0, 0, 10, 10], "label": label}))
    assert thing.label == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 40_000,
        "[" * 100_000,
        '{"bbox_2d":' + "[" * 50_000,
        '[{"bbox_2d": [1' * 20_000,
        "{}" * 400_000,
        '{"":"' * 40_000,
        "<|box_start|>" * 20_000,
        "<|object_ref_start|>" * 20_000,
        "<|box_start|>" + "(1," * 60_000,
        "<|box_start|>" + "(1,2),(3,4)" * 300_000,
        "bbox_2d" + " " * 500_000,
        "```json" * 50_000 + "bbox_2d",
        "[" + " " * 500_000 + "]",
    ],
)
def test_bombs_are_read_within_limits(text: str) -> None:
    result = located_things(text, THOUSANDTHS)
    assert len(result.things) <= THINGS_MAX
    words_for(text)


def test_a_million_detections_are_cut_to_the_first() -> None:
    result = located_things(f"[{CAT_JSON}" + f", {CAT_JSON}" * 1_000_000, THOUSANDTHS)
    assert len(result.things) == THINGS_MAX
    assert result.cut
    outside = located_things('{"point_2d": [-1, 0]}' * 3000, THOUSANDTHS)
    assert outside == LocatedThings((), THINGS_MAX, cut=True)
    assert located_things(CAT_JSON + " " * CHARS_MAX, THOUSANDTHS).cut
    assert not located_things(f"{CAT_JSON}," * THINGS_MAX, THOUSANDTHS).cut


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(10**30), 10**30)
items = st.fixed_dictionaries(
    {},
    optional={"bbox_2d": st.lists(numbers, max_size=6), "point_2d": st.lists(numbers, max_size=3), "label": st.text()},
)


@given(st.lists(items, max_size=8), st.integers(0, 2000), st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)))
def test_all_that_is_found_lies_in_the_picture(
    given_items: list[dict[str, Any]], end: int, extent: tuple[float, float]
) -> None:
    result = located_things(json.dumps(given_items)[:end], extent)
    for thing in result.things:
        assert thing.box is not None or thing.point is not None
        assert all(0 <= edge <= 1 for edge in (*(thing.box or ()), *(thing.point or ())))
        assert thing.box is None or (thing.box[0] < thing.box[2] and thing.box[1] < thing.box[3])
        thing.label.encode()


sides = st.tuples(st.integers(0, 499), st.integers(500, 999))
places = st.tuples(sides, sides).map(lambda box: (box[0][0], box[1][0], box[0][1], box[1][1]))
labelled_places = st.lists(
    st.tuples(places, st.text(st.characters(exclude_categories=("Cs",)), max_size=20)), min_size=1, max_size=6
)


@given(labelled_places, st.booleans(), st.text(st.characters(exclude_characters="{"), max_size=20))
def test_written_boxes_are_read_back_in_order(
    boxes: list[tuple[tuple[int, ...], str]], fence: bool, before: str
) -> None:
    text = json.dumps([{"bbox_2d": box, "label": label} for box, label in boxes], ensure_ascii=False)
    located = things(f"{before}```json\n{text}\n```" if fence else before + text)
    assert [(thing.label, thing.box) for thing in located] == [
        (label, tuple(edge / 1000 for edge in box)) for box, label in boxes
    ]


@given(labelled_places, st.data())
def test_of_an_answer_that_is_cut_short_the_whole_boxes_stay(
    boxes: list[tuple[tuple[int, ...], str]], data: st.DataObject
) -> None:
    parts = [json.dumps({"bbox_2d": box, "label": label}) for box, label in boxes]
    text = f"[{', '.join(parts)}]"
    end = data.draw(st.integers(0, len(text)))
    count = 0
    while count < len(parts) and len(f"[{', '.join(parts[: count + 1])}") <= end:
        count += 1
    assert len(things(text[:end])) == count


@given(st.text(max_size=300) | st.from_regex(r'([\[\]{}",:0-9 ]|bbox_2d|<\|box_start\|>|\(\d,\d\)){0,80}'))
def test_any_text_is_read_without_an_error(text: str) -> None:
    for thing in things(text):
        assert all(math.isfinite(edge) for edge in (*(thing.box or ()), *(thing.point or ())))
    assert isinstance(words_for(text), str)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a cat sleeps", "a cat sleeps"),
        ("a list: []", "a list: []"),
        (f"[{CAT_JSON}]", "cat"),
        (f"```json\n[{CAT_JSON}, {CAT_JSON}]\n```", "2 × cat"),
        (f'Here they are:\n```json\n[{CAT_JSON}, {CAT_JSON}, {{"point_2d": [1, 2]}}]\n```\nThat is all.',
         "Here they are: 2 × cat, object That is all."),
        (f'[{CAT_JSON}, {{"bbox_2d": [1, 2', "cat"),
        ("[]", "nothing"),
        ("```json\n[]\n```", "nothing"),
        (
            "The <|object_ref_start|>cat<|object_ref_end|><|box_start|>(1,2),(3,4)<|box_end|> is on a "
            "<|object_ref_start|>mat<|object_ref_end|><|box_start|>(1,2),(3",
            "The cat is on a mat",
        ),
        ("the key bbox_2d holds a box", "the key bbox_2d holds a box"),
    ],
)  # fmt: skip
def test_an_answer_in_words(text: str, words: str) -> None:
    assert words_for(text) == words


def test_only_some_labels_are_named() -> None:
    text = json.dumps([{"bbox_2d": [0, 0, 1, 1], "label": f"n{number}"} for number in range(40)])
    assert words_for(text) == ", ".join([*(f"n{number}" for number in range(LABELS_NAMED)), "…"])
