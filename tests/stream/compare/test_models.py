"""Models of a comparison: two at most in memory, and none that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arr_coc.errors import ModelError, ModelNotFound
from stream.compare.messages import ModelChoice
from stream.compare.models import LOADED_MAX, LoadedModels
from tests.support.models import tiny_folder

TILES = 384


class Loading:
    """Loads nothing, and remembers the order; `free` is what is left while so many are loaded."""

    def __init__(self, folder: Path, *names: str, room: int = 10) -> None:
        self.loaded: list[str] = []
        self.room = room
        choices = [ModelChoice(name, str(folder)) for name in names]
        self.models = LoadedModels(choices, self.load, free=self.free)

    def load(self, choice: ModelChoice) -> Any:
        self.loaded.append(choice.name)
        return object()

    def free(self) -> int:
        return 10**12 if len(self.models.names) < self.room else 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


def test_the_model_unused_for_longest_leaves(folder: Path) -> None:
    loading = Loading(folder, "a", "b", "c")
    first = loading.models.get("a", TILES)
    loading.models.get("b", TILES)
    assert loading.models.get("a", TILES) is first
    loading.models.get("c", TILES)
    assert loading.models.names == ("a", "c")
    loading.models.get("b", TILES)
    assert loading.loaded == ["a", "b", "c", "b"]
    assert len(loading.models.names) == LOADED_MAX


def test_another_leaves_where_there_is_no_room_for_two(folder: Path) -> None:
    loading = Loading(folder, "a", "b", room=1)
    loading.models.get("a", TILES)
    loading.models.get("b", TILES)
    assert loading.models.names == ("b",)


def test_a_model_that_does_not_fit_is_one_line(folder: Path) -> None:
    loading = Loading(folder, "big", room=0)
    with pytest.raises(ModelError, match=r"big needs about \d+\.\d GB, and 0\.0 GB are free; close other programs"):
        loading.models.get("big", TILES)
    assert loading.loaded == []


def test_a_model_that_is_elsewhere_is_not_downloaded(tmp_path: Path) -> None:
    loading = LoadedModels([ModelChoice("no/such-model", "no/such-model")], Loading(tmp_path).load)
    with pytest.raises(ModelError, match="no/such-model is not on this machine; download it first"):
        loading.get("no/such-model", TILES)
    gone = LoadedModels([ModelChoice("gone", str(tmp_path / "gone"))], Loading(tmp_path).load)
    with pytest.raises(ModelNotFound):
        gone.get("gone", TILES)
