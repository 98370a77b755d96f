"""Small weights in a folder beside the model: the same answers, what makes them again, what cannot be written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc.errors import OptionError
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.convert_dtype import MappedWeights
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.quantisation import SMALL_DTYPES, SmallDtype
from arr_coc.qwen.small_weights import cache, layers, shrinker
from arr_coc.qwen.small_weights.cache import ALIGNED_BYTES, DESCRIPTION, FOLDER
from arr_coc.qwen.small_weights.kernel import kernel_path, load_kernel
from arr_coc.qwen.small_weights.layers import SmallLinear
from stream.answer.qwen import load_qwen_model
from stream.config import Config
from tests.arr_coc.qwen.small_weights.test_layers import DENSE, family_folder, logits
from tests.support.models import tiny_folder
from tests.support.stores import require

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")


def cached(folder: Path, dtype: SmallDtype = "int8") -> Any:
    return load_qwen(folder, dtype=dtype, cache_weights=True)


def refuse(*_: Any) -> None:
    raise AssertionError("weights are made again")


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("dtype", SMALL_DTYPES)
@pytest.mark.parametrize("family", DENSE)
@pytest.mark.usefixtures("multiplier")
def test_cached_weights_are_those_that_were_made(
    tmp_path: Path, family: str, dtype: SmallDtype, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = family_folder(tmp_path, family, large, monkeypatch)
    monkeypatch.setattr(cache, "SHARD_BYTES", 20_000)
    original = cached(folder, dtype)
    monkeypatch.setattr(shrinker, "shrink_weights", refuse)
    loaded = cached(folder, dtype)
    assert (original.notices, loaded.notices) == ((), ())
    assert len(list((folder / FOLDER / dtype).glob("*.safetensors"))) > 3
    assert not list((folder / FOLDER).glob("*.*"))
    assert torch.equal(logits(loaded), logits(original))
    assert (loaded.weights_dtype, loaded.dtype, loaded.eos_ids) == (
        original.weights_dtype,
        original.dtype,
        original.eos_ids,
    )
    kinds = [list(map(type, qwen.model.modules())) for qwen in (original, loaded)]
    assert kinds[0] == kinds[1]
    parameters = [
        {name: (p.dtype, p.requires_grad) for name, p in qwen.model.named_parameters()} for qwen in (original, loaded)
    ]
    assert parameters[0] == parameters[1]


@pytest.mark.parametrize("dtype", SMALL_DTYPES)
def test_packed_weights_stay_in_the_mapped_file(tmp_path: Path, dtype: SmallDtype, multiplier: str) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    cached(folder, dtype)
    model, mapped = cached(folder, dtype).model, MappedWeights()
    layers = [module.export_tensors() for module in model.modules() if isinstance(module, SmallLinear)]
    in_place = [layer["packed"] for layer in layers if "packed" in layer]
    kernel_takes_8_bits = multiplier == "kernel" and load_kernel(kernel_path()).linear_takes_8_bits()
    assert bool(in_place) == (dtype == "int4" or kernel_takes_8_bits)
    places = [packed.data_ptr() for packed in in_place]
    assert all(any(first <= place < last for first, last in mapped._ranges) for place in places)
    assert all(place % ALIGNED_BYTES == 0 for place in places)


def change_weights(folder: Path) -> None:
    os.utime(folder / "model.safetensors", ns=(1, 1))


def change_version(folder: Path) -> None:
    path = folder / FOLDER / "int8" / DESCRIPTION
    path.write_text(path.read_text().replace('"version": 2', '"version": 0'))


def flip_a_bit(folder: Path) -> None:
    path = max((folder / FOLDER / "int8").glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def swap_two_pages(folder: Path) -> None:
    path = max((folder / FOLDER / "int8").glob("*.safetensors"), key=lambda path: path.stat().st_size)
    data = path.read_bytes()
    middle = len(data) // 2 // 4096 * 4096
    pages = [data[middle : middle + 4096], data[middle + 4096 : middle + 8192]]
    assert len(pages[1]) == 4096
    assert pages[0] != pages[1]
    path.write_bytes(data[:middle] + pages[1] + pages[0] + data[middle + 8192 :])


def link_to_a_copy(folder: Path) -> None:
    path = max((folder / FOLDER / "int8").glob("*.safetensors"))
    path.rename(folder / "copy")
    path.symlink_to(folder / "copy")


def cut_short(folder: Path) -> None:
    path = max((folder / FOLDER / "int8").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-8])


def remove_a_file(folder: Path) -> None:
    max((folder / FOLDER / "int8").glob("*.safetensors")).unlink()


def spoil_the_description(folder: Path) -> None:
    (folder / FOLDER / "int8" / DESCRIPTION).write_text("{")


def describe_no_file(folder: Path) -> None:
    path = folder / FOLDER / "int8" / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": {}}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_weights, "were made from other files or by another version"),
        (change_version, "were made from other files or by another version"),
        *((change, "are damaged") for change in (flip_a_bit, swap_two_pages, link_to_a_copy)),
        *((change, "are damaged") for change in (cut_short, remove_a_file, spoil_the_description)),
        (describe_no_file, "are damaged"),
    ],
)
def test_a_cache_that_does_not_fit_is_made_again(tmp_path: Path, change: Callable[[Path], None], reason: str) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    expected = logits(cached(folder))
    change(folder)
    rebuilt = cached(folder)
    assert rebuilt.notices == (f"the int8 weights in {folder / FOLDER / 'int8'} {reason}, and are made again",)
    assert torch.equal(logits(rebuilt), expected)
    assert cached(folder).notices == ()


@pytest.mark.parametrize("dtype", SMALL_DTYPES)
def test_weights_are_packed_for_a_multiplier(
    tmp_path: Path, dtype: SmallDtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("compiled")
    folder = tiny_folder(tmp_path / "tiny")
    cached(folder, dtype)
    monkeypatch.setattr(layers, "kernel_or_none", lambda: None)
    assert "another version, and are made again" in "".join(cached(folder, dtype).notices)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    assert "another version, and are made again" in "".join(cached(folder, dtype).notices)
    assert cached(folder, dtype).notices == ()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    (folder / FOLDER).write_text("a file")
    qwen = cached(folder)
    (notice,) = qwen.notices
    assert notice.startswith(f"the int8 weights cannot be cached in {folder / FOLDER / 'int8'} (")
    assert torch.equal(logits(qwen), logits(load_qwen(folder, dtype="int8")))


@pytest.mark.parametrize("linked", [FOLDER, f"{FOLDER}/int8"])
def test_a_link_is_not_followed(tmp_path: Path, linked: str) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "int8").mkdir(parents=True)
    kept = [elsewhere / DESCRIPTION, elsewhere / "int8" / DESCRIPTION]
    for path in kept:
        path.write_text("kept")
    (folder / linked).parent.mkdir(exist_ok=True)
    (folder / linked).symlink_to(elsewhere)
    (notice,) = cached(folder).notices
    assert notice == (
        f"the int8 weights are not cached: {folder / linked} is a link, and nothing outside {folder} is written or "
        "removed; remove the link"
    )
    assert sorted(path for path in elsewhere.rglob("*") if path.is_file()) == sorted(kept)
    assert [path.read_text() for path in kept] == ["kept"] * 2


def test_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    ended, running = (folder / FOLDER / f"int8.{pid}" for pid in (2**31 - 1, os.getppid()))
    for left in (ended, running):
        left.mkdir(parents=True)
    cached(folder)
    assert (ended.exists(), running.exists()) == (False, True)


def test_only_small_weights_are_cached(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cache_weights is for dtype int8 and int4, got auto; leave it out"):
        load_qwen(tmp_path, cache_weights=True)


def test_runs_and_the_library_cache_on_request(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    answer = {"model": str(folder), "device": "cpu", "dtype": "int8"}
    load_qwen_model(Config.model_validate({"source": "x.mp4", "answer": answer}))
    assert not (folder / FOLDER).exists()
    load_qwen_model(Config.model_validate({"source": "x.mp4", "answer": answer | {"cache_weights": True}}))
    ARRCOCQwen.from_pretrained(folder, dtype="int4", device="cpu", cache_weights=True)
    assert sorted(path.name for path in (folder / FOLDER).iterdir()) == ["int4", "int8"]
