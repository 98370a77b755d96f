"""Messages with detections of another program: both encodings, shares and pixels, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.errors import TransportError
from stream.extensions.detections.message import DETECTION_BYTES_MAX, OBJECTS_MAX, read_detections

CAT = {"box": [0.1, 0.2, 0.3, 0.4], "label": "cat", "score": 0.75}


def message(*objects: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"objects": objects, **fields}).encode()


@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode])
@pytest.mark.parametrize(
    ("size", "scale"), [({}, (1, 1)), ({"width_px": 640, "height_px": 480}, (640, 480))], ids=["shares", "pixels"]
)
def test_boxes_are_read_in_both_encodings_and_units(encode: Any, size: dict[str, int], scale: tuple[int, int]) -> None:
    box = [edge * side for edge, side in zip((0.1, 0.2, 0.3, 0.4), (*scale, *scale), strict=True)]
    detections = read_detections(
        encode({"unix_ns": 5, "objects": [{**CAT, "box": box}, {"box": box}], "more": 1, **size})
    )
    assert detections.boxes.tolist() == [pytest.approx([0.1, 0.2, 0.3, 0.4])] * 2
    assert (detections.labels, detections.scores, detections.unix_ns, detections.cut) == (
        ("", "cat"),
        (1.0, 0.75),
        5,
        False,
    )


def test_boxes_are_turned_clipped_or_left_out() -> None:
    boxes = [[0.3, 0.4, 0.1, 0.2], [-5, 0.5, 0.5, 9], [1.1, 0, 1.2, 1], [0.5, 0.5, 0.5, 0.6]]
    detections = read_detections(b"  " + message(*({"box": box, "label": str(at)} for at, box in enumerate(boxes))))
    assert detections.boxes.tolist() == [[0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 1.0]]
    assert detections.labels == ("0", "1")


def test_no_objects_are_a_message_too() -> None:
    assert read_detections(message()).boxes.shape == (0, 4)


def test_of_too_many_boxes_the_likeliest_stay() -> None:
    objects = [{"box": [0, 0, 1, 1], "score": at / 1000} for at in range(OBJECTS_MAX + 9)]
    detections = read_detections(message(*objects))
    assert detections.cut
    assert (len(detections.scores), min(detections.scores)) == (OBJECTS_MAX, 0.009)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (message(*[CAT] * 1_000_000), "a message has .* bytes; at most 65536 are read"),
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[1]", "cannot be read"),
        (b'{"objects": 5}', "cannot be read: Expected `array`"),
        (b'{"objects": ' + b"[" * 60_000, "cannot be read"),
        (b'{"x": ' * 10_000, "cannot be read"),
        (b"\x81\xa1x" * 20_000, "cannot be read"),
        (message({"box": [0, 0, 1]}), "cannot be read: Expected `array` of length 4"),
        (message({"box": [0, 0, 1e300, 1]}), "cannot be read: Expected `float` <= 1000000.0"),
        (message({"box": [0, 0, float("nan"), 1]}), "cannot be read"),
        (msgspec.msgpack.encode({"objects": [{"box": [0.0, 0.0, float("nan"), 1.0]}]}), "cannot be read"),
        (message({**CAT, "score": 7}), "cannot be read: Expected `float` <= 1.0"),
        (message({**CAT, "label": "x" * 300}), "cannot be read: Expected `str` of length <= 256"),
        (message(CAT, width_px=0, height_px=5), "cannot be read: Expected `int` >= 1"),
        (message(CAT, width_px=5), "give both for pixels, none for shares"),
    ],
)  # fmt: skip
def test_invalid_messages_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(TransportError, match=reason):
        read_detections(data)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        detections = read_detections(data)
    except TransportError:
        return
    assert len(data) <= DETECTION_BYTES_MAX
    assert ((detections.boxes >= 0) & (detections.boxes <= 1)).all()
