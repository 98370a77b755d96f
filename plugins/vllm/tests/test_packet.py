"""Reader of packets: format, validation, and packets changed at random. Needs neither vLLM nor torch."""

from __future__ import annotations

import io
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import arr_coc_vllm
import numpy as np
import pytest
from arr_coc_vllm import MODELS, unsupported
from arr_coc_vllm.packet import CHUNK, SIDE_MAX_TILES, TOKENS_MAX, Packet, PacketError, find_places, read_packet
from PIL import Image

GOLDEN = (Path(__file__).parent / "golden" / "packet.png").read_bytes()
REGIONS = [[2, 0, 0], [2, 0, 1], [0, 0, 0], [1, 1, 2], [6, 3, 1], [13, 0, 5]]
CONTENT_ID = "3adf0061cf0e4249876b84b65edb458f2ac56da4997d777ff811ea36627af2e9"
CHUNK_AT = 33
LINES_MAX = 400


def places_in(png: bytes) -> bytes:
    """Places of a PNG file that has some."""
    places = find_places(png)
    assert places is not None
    return places


def pixels_of(count: int) -> np.ndarray:
    """Picture of a packet of so many tokens."""
    return np.zeros((32 * count, 32, 3), np.uint8)


def places_of(version: int, rows: int, cols: int, overview: int, regions: list[list[int]]) -> bytes:
    head = struct.pack(">BHHHH", version, rows, cols, len(regions), overview)
    return head + b"".join(struct.pack(">BHH", *region) for region in regions)


def with_chunk(places: bytes) -> bytes:
    """Golden file with other places under a right checksum."""
    length = struct.unpack_from(">I", GOLDEN, CHUNK_AT)[0]
    body = CHUNK + places
    chunk = struct.pack(">I", len(places)) + body + struct.pack(">I", zlib.crc32(body))
    return GOLDEN[:CHUNK_AT] + chunk + GOLDEN[CHUNK_AT + 12 + length :]


def test_the_golden_file_is_read() -> None:
    packet = read_packet(places_in(GOLDEN), np.asarray(Image.open(io.BytesIO(GOLDEN))))
    numbers = np.arange(len(REGIONS) * 3 * 32 * 32, dtype=np.int64)
    np.testing.assert_array_equal(packet.tiles.ravel(), (numbers * 2654435761 >> 13).astype(np.uint8))
    assert packet.regions.tolist() == REGIONS
    assert (packet.rows, packet.cols, packet.overview) == (4, 6, 2)
    assert packet.content_id == CONTENT_ID


def test_any_other_picture_has_no_places() -> None:
    with io.BytesIO() as file:
        Image.new("RGB", (32, 32)).save(file, "PNG")
        assert find_places(file.getvalue()) is None
    assert find_places(b"\xff\xd8\xff\xe0 a JPEG file") is None
    assert find_places(b"") is None


@pytest.mark.parametrize(
    "png",
    [
        GOLDEN[: CHUNK_AT + 20],
        GOLDEN[: CHUNK_AT + 12] + b"\x07" + GOLDEN[CHUNK_AT + 13 :],
        GOLDEN[:CHUNK_AT] + GOLDEN[CHUNK_AT : CHUNK_AT + 12 + 39] * 2 + GOLDEN[CHUNK_AT + 12 + 39 :],
    ],
    ids=["cut off", "a wrong checksum", "two chunks"],
)
def test_a_damaged_chunk_is_refused(png: bytes) -> None:
    with pytest.raises(PacketError, match="damaged or there are two"):
        find_places(png)


@pytest.mark.parametrize(
    ("places", "tokens", "message"),
    [
        (b"", 1, "version 1, got an empty one"),
        (places_of(0, 1, 1, 0, [[0, 0, 0]]), 1, "arr-coc-vllm reads packets of version 1, got version 0"),
        (b"\x01\x00", 1, "do not hold the 0 regions"),
        (places_of(1, 4, 6, 0, REGIONS)[:-1], 6, "do not hold the 6 regions"),
        (places_of(1, 4, 6, 0, REGIONS), 5, "picture of 32x192 pixels"),
        (places_of(1, 4, 6, 0, []), 0, "of 0 tokens"),
        (places_of(1, 4, 6, 7, REGIONS), 6, "overview"),
        (places_of(1, 0, 6, 0, REGIONS), 6, "rows and columns"),
        (places_of(1, 4, SIDE_MAX_TILES + 1, 0, REGIONS), 6, "rows and columns"),
        (places_of(1, 4, 6, 0, [[14, 0, 0]]), 1, "shape is 0 to 13"),
        (places_of(1, 4, 6, 0, [[2, 1, 0]]), 1, r"region \[2, 1, 0\] lies outside"),
        (places_of(1, 4, 6, 0, [[0, 0, 6]]), 1, r"region \[0, 0, 6\] lies outside"),
    ],
)
def test_a_wrong_packet_is_refused_in_one_line(places: bytes, tokens: int, message: str) -> None:
    with pytest.raises(PacketError, match=message) as caught:
        read_packet(places, pixels_of(tokens))
    assert "\n" not in str(caught.value)


def test_a_packet_made_by_hand_is_checked_likewise() -> None:
    tiles, regions = np.zeros((1, 3, 32, 32), np.uint8), np.zeros((1, 3), np.int64)
    assert Packet(tiles, regions, 1, 1).overview == 0
    with pytest.raises(PacketError, match=r"uint8 \[K, 3, 32, 32\]"):
        Packet(tiles.astype(np.float32), regions, 1, 1)  # type: ignore[arg-type]
    with pytest.raises(PacketError, match=rf"1 to {TOKENS_MAX} tokens"):
        Packet(tiles[:0], regions[:0], 1, 1)
    with pytest.raises(PacketError, match="at least 0"):
        Packet(tiles, regions - 1, 1, 1)


def test_packets_changed_at_random_are_read_or_refused() -> None:
    """10,000 packets: bytes changed, inserted, removed and repeated, half of them under a right checksum."""
    random_number = random.Random(7)
    original, packet_count, lines = places_in(GOLDEN), 0, set()
    for number in range(10_000):
        changed = bytearray(original if number % 2 else GOLDEN[:200])
        for _ in range(random_number.randint(1, 4)):
            at = random_number.randrange(len(changed))
            kind = random_number.randrange(4)
            if kind == 0:
                changed[at] = random_number.randrange(256)
            elif kind == 1:
                changed.insert(at, random_number.randrange(256))
            elif kind == 2 and len(changed) > 1:
                del changed[at : at + random_number.randint(1, 9)]
            else:
                changed[at:at] = changed[at : at + random_number.randint(1, 9)]
            changed = changed or bytearray(b"\x01")
        try:
            places = find_places(with_chunk(bytes(changed)) if number % 2 else bytes(changed) + GOLDEN[200:])
            if places is not None:
                packet = read_packet(places, pixels_of(random_number.choice((1, 5, 6, 7))))
                assert len(packet.regions) == len(packet.tiles) <= TOKENS_MAX
                packet_count += 1
        except PacketError as error:
            lines.add(str(error))
    assert 0 < packet_count < 5_000
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "1.0.0", "dev"])
def test_another_vllm_is_named_with_those_that_work(version: str) -> None:
    line = unsupported(version)
    assert f"does not know vLLM {version}" in line
    assert line.endswith("install vllm>=0.32,<0.33")
    assert "\n" not in line


def test_the_range_holds_what_was_tested() -> None:
    assert unsupported("0.32.0") == unsupported("0.32.1+cpu") == ""


@pytest.mark.parametrize(("version", "registered"), [("0.31.2", 0), ("0.32.1", len(MODELS))])
def test_classes_are_registered_for_a_vllm_of_the_range_only(
    version: str, registered: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a registry in the place of vLLM's, as vLLM cannot be installed beside the program."""
    classes: dict[str, str] = {}
    registry = SimpleNamespace(register_model=classes.__setitem__)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version, ModelRegistry=registry))
    arr_coc_vllm.register()
    assert len(classes) == registered
    assert [record.getMessage() for record in caplog.records] == [unsupported(version)] * (not registered)


def test_the_plugin_is_loaded_without_vllm_and_torch() -> None:
    code = (
        "import sys, arr_coc_vllm.packet; assert not {'vllm', 'torch', 'transformers', 'arr_coc'} & set(sys.modules), 1"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=Path(arr_coc_vllm.__file__).parents[1], timeout=60, env={}
    )


def test_every_class_is_defined() -> None:
    """By text, as their module imports vLLM."""
    text = (Path(arr_coc_vllm.__file__).parent / "models.py").read_text("utf-8")
    assert all(f"\n{name} = _with_packets(" in text for name in MODELS.values())


def test_the_plugin_stays_small() -> None:
    files = Path(arr_coc_vllm.__file__).parent.glob("*.py")
    lines = [line for file in files for line in file.read_text("utf-8").splitlines() if line.strip()]
    assert len(lines) <= LINES_MAX
