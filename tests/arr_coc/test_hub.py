"""Names, folders and the hub's ways of saying no; nothing here reaches a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from arr_coc import hub
from arr_coc.errors import HubUnreachable, ModelError, ModelNotFound
from arr_coc.hub import WANTED_FILES, bundled_model_path, download, local_folder


def refusing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)


def http_error(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, "refused")
    return error


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert local_folder(tmp_path) == local_folder(str(tmp_path)) == tmp_path


def test_a_name_on_the_hub_is_no_folder() -> None:
    assert local_folder("Qwen/Qwen3-VL-2B-Instruct") is None


def test_an_existing_folder_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert local_folder("Qwen/tiny") == Path("Qwen/tiny")


@pytest.mark.parametrize("name", ["tiny", "/nowhere/tiny", "./models/tiny", "../tiny", "a/b/c", "a b/c", Path("a/b")])
def test_a_path_that_leads_nowhere(name: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ModelNotFound, match=r"there is no folder .*; give one, or a name on the hub as owner/model"):
        local_folder(name)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelNotFound, match=r"model\.bin is a file; give the folder"):
        local_folder(tmp_path / "model.bin")


def test_only_wanted_files_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def fetch(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert download("someone/tiny", "secret") == tmp_path
    assert asked == {"name": "someone/tiny", "allow_patterns": list(WANTED_FILES), "token": "secret"}


@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (http_error(errors.GatedRepoError), ModelError, "accept its terms at https://huggingface.co/someone/tiny"),
        (http_error(errors.RepositoryNotFoundError), ModelNotFound, "no public model of this name on the hub"),
        (errors.HFValidationError("bad"), ModelNotFound, "no public model of this name"),
        (errors.LocalEntryNotFoundError("offline"), HubUnreachable, "the hub cannot be reached"),
        (errors.OfflineModeIsEnabled("offline"), HubUnreachable, "the hub cannot be reached"),
        (http_error(errors.HfHubHTTPError), HubUnreachable, "the hub cannot be reached"),
        (OSError(28, "No space left on device"), ModelError, "No space left on device; make room"),
    ],
)
def test_what_the_hub_refuses(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], match: str
) -> None:
    refusing(monkeypatch, error)
    with pytest.raises(kind, match=match) as caught:
        download("someone/tiny")
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def test_an_installation_without_the_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "scenes-tiny"
    monkeypatch.setattr(hub, "bundled_folder", lambda: folder)
    with pytest.raises(ModelNotFound, match=r"the bundled model is not at .*scenes-tiny; install the project again"):
        bundled_model_path()
    folder.mkdir()
    (folder / "config.json").touch()
    assert bundled_model_path() == folder
