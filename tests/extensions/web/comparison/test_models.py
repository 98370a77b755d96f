"""Models of a comparison: each loaded once, as many as the setting or the memory allows, and none that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arr_coc.errors import ModelError, ModelNotFound
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.memory_estimate import MemoryEstimate
from stream.extensions.web.comparison.messages import NO_ALLOCATOR, CompareOptions, ModelChoice
from stream.extensions.web.comparison.models import LoadedModels, QwenLoader
from tests.support.models import tiny_folder

TILES = 384
SIZE = 100
"""Bytes of each model, a tenth of which is not weights."""


class FakeLoader(QwenLoader):
    """Loads nothing, and remembers the order. `memory`: bytes that are free before the first model."""

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.allocators: list[str] = []
        self.memory = memory
        self.models: LoadedModels | None = None

    def load(self, model: str | None) -> Any:
        self.loaded.append(Path(str(model)).name)
        return object()

    def with_allocator(self, base: Any, allocator: str) -> Any:
        self.allocators.append(allocator)
        return base, allocator

    def estimate(self, folder: Path, name: str, tiles: int) -> MemoryEstimate:
        return MemoryEstimate(SIZE - SIZE // 10, SIZE // 10, 0)

    def free_bytes(self) -> int:
        return self.memory - SIZE * (0 if self.models is None else len(self.models._loaded))


class Loading:
    """Models `a`, `b`, `c` of one size, and a memory of that many bytes. `loaded` as in `CompareOptions`."""

    def __init__(self, folder: Path, *choices: ModelChoice, memory: int, loaded: int | None = None) -> None:
        self.loader = FakeLoader(memory)
        model_choices = choices or [ModelChoice(name, str(folder / name)) for name in "abc"]
        self.models = LoadedModels(CompareOptions(list(model_choices), loaded=loaded), self.loader)
        self.loader.models = self.models

    @property
    def names(self) -> list[str]:
        return [name for name in self.models._choices if self.models.is_loaded(name)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    for name in "abc":
        tiny_folder(place / name)
    return place


def test_the_model_unused_for_longest_leaves(folder: Path) -> None:
    loading = Loading(folder, memory=10 * SIZE, loaded=2)
    first = loading.models.get("a", TILES)
    loading.models.get("b", TILES)
    assert loading.models.get("a", TILES) is first
    loading.models.get("c", TILES)
    assert loading.names == ["a", "c"]
    loading.models.get("b", TILES)
    assert loading.loader.loaded == ["a", "b", "c", "b"]


@pytest.mark.parametrize(("memory", "limit"), [(SIZE, 1), (2 * SIZE, 1), (3 * SIZE, 2), (4 * SIZE, 3), (99 * SIZE, 3)])
def test_the_automatic_number_is_what_fits_into_three_quarters_of_the_memory(
    folder: Path, memory: int, limit: int
) -> None:
    loading = Loading(folder, memory=memory)
    for name in "abc":
        loading.models.get(name, TILES)
    assert loading.models.limit == limit
    assert loading.names == list("abc")[3 - limit :]


def test_a_given_number_counts_beside_the_memory(folder: Path) -> None:
    loading = Loading(folder, memory=SIZE, loaded=3)
    loading.models.get("a", TILES)
    loading.models.get("b", TILES)
    assert loading.names == ["b"]


def test_a_model_is_loaded_once_however_many_allocators_it_has(folder: Path) -> None:
    allocators = (None, NO_ALLOCATOR, "yard", "gate")
    choices = [ModelChoice(str(name), str(folder / "a"), name) for name in allocators]
    other_spelling = ModelChoice("again", f"{folder}/b/../a", "yard")
    loading = Loading(folder, *choices, other_spelling, memory=SIZE + SIZE // 10)
    models = [loading.models.get(str(name), TILES) for name in allocators]
    assert loading.loader.loaded == ["a"]
    assert loading.loader.allocators == [NO_ALLOCATOR, "yard", "gate"]
    assert models[1:] == [(models[0], name) for name in allocators[1:]]
    assert loading.models.get("again", TILES) is models[2]
    assert loading.models.limit == 1


def test_an_allocator_is_given_to_the_same_weights(tmp_path: Path) -> None:
    model = ARRCOCQwen.from_pretrained(tiny_folder(tmp_path / "tiny"))
    model.qwen.new_allocator().save_pretrained(tmp_path / "trained")
    loader = QwenLoader("cpu")
    base = loader.load(str(tmp_path / "tiny"))
    trained = loader.with_allocator(base, str(tmp_path / "trained"))
    without = loader.with_allocator(trained, NO_ALLOCATOR)
    assert trained.qwen.model is base.qwen.model
    assert without.qwen.model is base.qwen.model
    assert base.qwen.allocator is None
    assert trained.qwen.allocator is not None
    assert without.qwen.allocator is None
    other = loader.load(None)
    with pytest.raises(ModelError, match="made for another model than scenes-tiny"):
        loader.with_allocator(other, str(tmp_path / "trained"))


def test_memory_is_estimated_for_the_dtype_that_is_computed_with(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    estimates = [QwenLoader("cpu", dtype).estimate(folder, "tiny", TILES).weights for dtype in ("auto", "float32")]
    assert estimates[0] == estimates[1]


def test_a_model_that_does_not_fit_is_one_line(folder: Path) -> None:
    loading = Loading(folder, memory=SIZE // 2)
    with pytest.raises(ModelError, match=r"a needs about 0\.0 GB, and 0\.0 GB are free; close other programs"):
        loading.models.get("a", TILES)
    assert loading.loader.loaded == []


def test_a_model_that_is_elsewhere_is_not_downloaded(tmp_path: Path) -> None:
    choices = [ModelChoice("hub", "no/such-model"), ModelChoice("gone", str(tmp_path / "gone"))]
    loading = Loading(tmp_path, *choices, memory=SIZE)
    with pytest.raises(ModelError, match="no/such-model is not on this machine; download it first"):
        loading.models.get("hub", TILES)
    with pytest.raises(ModelNotFound):
        loading.models.get("gone", TILES)
