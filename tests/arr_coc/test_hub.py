"""Names, folders and the hub's ways of saying no; nothing here reaches a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import RepoUrl, errors

from arr_coc import hub
from arr_coc.errors import HubUnreachable, ModelError, ModelNotFound
from arr_coc.finetune.module import TrainableQwen
from arr_coc.hub import ALLOCATOR_FILES, WANTED_FILES, bundled_model_path, download, local_folder
from arr_coc.layer import ARRCOCLayer
from tests.support.models import tiny_qwen


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


class FakeHub:
    """The calls that an upload makes, and the files that it was given."""

    def __init__(self) -> None:
        self.repository: dict[str, Any] = {}
        self.files: set[str] = set()
        self.uploaded: dict[str, Any] = {}

    def create_repo(self, repo_id: str, **options: Any) -> RepoUrl:
        self.repository = {"repo_id": repo_id, **options}
        return RepoUrl(f"https://huggingface.co/acme/{repo_id.rpartition('/')[2]}")

    def upload_folder(self, *, folder_path: Path, **options: Any) -> None:
        self.files = {str(path.relative_to(folder_path)) for path in folder_path.rglob("*") if path.is_file()}
        self.uploaded = options


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr(huggingface_hub, "create_repo", fake.create_repo)
    monkeypatch.setattr(huggingface_hub, "upload_folder", fake.upload_folder)
    return fake


@pytest.mark.parametrize("name", ["acme/tiny", "tiny"])
def test_a_model_is_uploaded_as_it_is_saved(fake_hub: FakeHub, tmp_path: Path, name: str) -> None:
    model = TrainableQwen(tiny_qwen())
    address = model.push_to_hub(name, private=True, token="hf_secret", message="Add a model")
    assert address == "https://huggingface.co/acme/tiny"
    assert fake_hub.repository == {"repo_id": name, "private": True, "token": "hf_secret", "exist_ok": True}
    assert fake_hub.uploaded == {"repo_id": "acme/tiny", "commit_message": "Add a model", "token": "hf_secret"}
    model.save_pretrained(tmp_path / "saved")
    saved = {str(path.relative_to(tmp_path / "saved")) for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert fake_hub.files == saved > {"config.json", "model.safetensors", "arr_coc/model.safetensors"}


def test_an_allocator_is_uploaded_as_it_is_saved(fake_hub: FakeHub) -> None:
    assert ARRCOCLayer().push_to_hub("acme/allocator") == "https://huggingface.co/acme/allocator"
    assert fake_hub.files == set(ALLOCATOR_FILES)
    assert fake_hub.repository["private"] is None


def test_a_hub_that_refuses_an_upload(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise http_error(errors.HfHubHTTPError)

    monkeypatch.setattr(huggingface_hub, "upload_folder", refuse)
    with pytest.raises(ModelError, match="acme/tiny cannot be uploaded: refused; log in with `hf auth login`"):
        ARRCOCLayer().push_to_hub("acme/tiny")
    monkeypatch.setattr(huggingface_hub, "upload_folder", lambda **_: offline())
    with pytest.raises(HubUnreachable, match="the hub cannot be reached to upload acme/tiny"):
        ARRCOCLayer().push_to_hub("acme/tiny")
    assert fake_hub.repository["repo_id"] == "acme/tiny"


def offline() -> None:
    raise ConnectionError("no network")


def test_only_wanted_files_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = {}

    def fetch(name: str, **options: Any) -> str:
        request.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert download("acme/tiny", "secret") == tmp_path
    assert request == {"name": "acme/tiny", "allow_patterns": list(WANTED_FILES), "token": "secret"}


@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (http_error(errors.GatedRepoError), ModelError, "accept its terms at https://huggingface.co/acme/tiny"),
        (http_error(errors.RepositoryNotFoundError), ModelNotFound, "no public model of this name on the hub"),
        (errors.HFValidationError("bad"), ModelNotFound, "no public model of this name"),
        (errors.LocalEntryNotFoundError("offline"), HubUnreachable, "the hub cannot be reached"),
        (errors.OfflineModeIsEnabled("offline"), HubUnreachable, "the hub cannot be reached"),
        (http_error(errors.HfHubHTTPError), HubUnreachable, "the hub cannot be reached"),
        (OSError(28, "No space left on device"), ModelError, "No space left on device; make room"),
    ],
)
def test_refusals_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], match: str
) -> None:
    refusing(monkeypatch, error)
    with pytest.raises(kind, match=match) as caught:
        download("acme/tiny")
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
