"""Resolution of a model's name to its folder: a path, a name on the hub, or the bundled model (no transformers)."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arr_coc.errors import HubUnreachable, ModelError, ModelNotFound
from arr_coc.resources import bundled_folder

ALLOCATOR_FOLDER = "arr_coc"
"""Sub-folder of a model's folder that holds its allocator, as `ARRCOCLayer.save_pretrained` writes it."""

ALLOCATOR_FILES = ("config.json", "model.safetensors")
"""Configuration and weights of an allocator."""

WANTED_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja")

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

_HUB_PAGE = re.compile(r"(?:https?://)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)")

_SERVED_NAME = re.compile(r"(?:[\w.-]+/)*[\w.-]+:[\w.-]+")
"""Name of a model with a tag, as Ollama writes it."""

GGUF_REMEDY = "take the model's safetensors, or have llama.cpp serve it and give that server's address with --api"

log = logging.getLogger(__name__)


def bundled_model_path() -> Path:
    """Return the folder of the bundled model. Raises ModelNotFound if this installation lacks it."""
    folder = bundled_folder()
    if not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"the bundled model is not at {folder}",
            "install the project again, or name a model, such as Qwen/Qwen3-VL-2B-Instruct",
        )
    return folder


def local_folder(name: str | Path) -> Path | None:
    """Return the folder that `name` means, or None if it is a name on the hub.

    Raises ModelNotFound if it is a file, or the path of a folder that does not exist.
    """
    if not str(name).strip() or "\0" in str(name):
        raise ModelNotFound(f"{str(name)!r} names no model", "give the folder of a model, or a name on the hub")
    try:
        path = Path(name).expanduser()
        exists = path.exists()
        is_folder = path.is_dir()
    except (OSError, RuntimeError) as error:  # no permission; or ~user of an unknown user
        raise ModelNotFound(f"{name} cannot be read ({error})", "check its permissions") from error
    if is_folder:
        return path
    if str(name).endswith(".gguf"):
        raise ModelNotFound(f"{name} is a GGUF file, which is not read", GGUF_REMEDY)
    if exists:
        raise ModelNotFound(f"{name} is a file", "give the folder of a model, or a name on the hub")
    if (page := _HUB_PAGE.match(str(name))) is not None:
        raise ModelNotFound(f"{name} is an address, not a model's name", f"give its name, {page[1]}")
    if isinstance(name, str) and "://" in name:
        raise ModelNotFound(f"{name} is an address", "give a model's name on the hub, or a server's address with --api")
    if isinstance(name, str) and _SERVED_NAME.fullmatch(name):
        raise ModelNotFound(
            f"there is no folder {name}, and on the hub no name has a colon",
            f"for a model of Ollama give --api http://127.0.0.1:11434/v1 -m {name}; a name on the hub is owner/model",
        )
    if isinstance(name, Path) or not _HUB_NAME.fullmatch(name) or name.startswith("."):
        raise ModelNotFound(f"there is no folder {name}", "give one, or a name on the hub as owner/model")
    return None


def allocator_folder(name: str | Path) -> Path | None:
    """Return the folder of an allocator, or None if it is a name on the hub.

    Raises ModelNotFound if there is no such folder, or if it holds no allocator.
    """
    try:
        folder = local_folder(name)
    except ModelNotFound as error:
        raise ModelNotFound(f"no allocator: {error.problem}", "give a folder that `adapt` wrote") from error
    if folder is not None:
        check_allocator_files(folder)
    return folder


def check_allocator_files(folder: Path) -> None:
    """Raise ModelNotFound if a folder lacks a file of an allocator."""
    for file in ALLOCATOR_FILES:
        if not (folder / file).is_file():
            files = " and ".join(ALLOCATOR_FILES)
            raise ModelNotFound(
                f"{folder} holds no {file}", f"an allocator's folder, as `adapt` writes it, has {files}"
            )


def cached_folder(name: str) -> Path | None:
    """Return the folder of the hub's model `name` if it was downloaded before; uses no network."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    if isinstance(config, str):
        return Path(config).parent
    return None


def download(name: str, token: str | None = None, files: tuple[str, ...] = WANTED_FILES) -> Path:
    """Return the folder of the hub's model `name`, downloaded unless it already is; without a network, the cached
    files.

    Raises as `asking`.
    """
    from huggingface_hub import snapshot_download

    log.info("looking for %s on the hub", name)
    with hub_request(name):
        return Path(snapshot_download(name, allow_patterns=list(files), token=token))


def upload(folder: Path, name: str, *, private: bool | None, token: str | None, message: str) -> str:
    """Upload a folder's files to the hub in one commit, and return the address of the repository.

    Args:
        folder: The files.
        name: `owner/model`; the repository is made if it does not exist.
        private: Whether a new repository is private; None: as the account has it.
        token: Of an account that may write; None: of the account that is logged in.
        message: Of the commit.

    Raises:
        ModelError: The hub refuses it.
        HubUnreachable: No connection.
    """
    from huggingface_hub import create_repo, errors, upload_folder

    try:
        with _silent():
            address = create_repo(name, private=private, token=token, exist_ok=True)
            upload_folder(repo_id=address.repo_id, folder_path=folder, commit_message=message, token=token)
    except (errors.HfHubHTTPError, errors.HFValidationError, errors.LocalTokenNotFoundError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise ModelError(
            f"{name} cannot be uploaded: {reason}",
            "log in with `hf auth login` and a token that may write, and name it owner/model",
        ) from error
    except (ConnectionError, errors.HTTPError) as error:
        raise HubUnreachable(f"the hub cannot be reached to upload {name}", "check the network") from error
    return str(address)


@contextmanager
def hub_request(name: str) -> Iterator[None]:
    """Requests to the hub about the model `name`, without warnings and progress bars.

    Raises ModelNotFound if there is no such model, HubUnreachable if the hub cannot be reached, and ModelError
    if the model is gated or cannot be stored.
    """
    from huggingface_hub import errors

    try:
        with _silent():
            yield
    except ModelError:
        raise
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{name} is gated: accept its terms at https://huggingface.co/{name}, then log in with `hf auth login` "
            "or set HF_TOKEN"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ModelNotFound(
            f"there is no folder {name} and no public model of this name on the hub",
            "check the spelling, or log in with `hf auth login` if it is private",
        ) from error
    except (errors.LocalEntryNotFoundError, ConnectionError, errors.HTTPError) as error:
        raise HubUnreachable(
            f"there is no folder {name}, and the hub cannot be reached to look for it",
            "check the network, or give the folder of a model that is on this machine",
        ) from error
    except OSError as error:
        raise ModelError(
            f"{name} cannot be downloaded: {error}", "make room, or set HF_HOME to another place"
        ) from error


@contextmanager
def _silent() -> Iterator[None]:
    """Keep huggingface_hub from writing warnings, retries and progress bars to the terminal."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from huggingface_hub.utils.logging import get_verbosity, set_verbosity

    silent_before = are_progress_bars_disabled()
    verbosity = get_verbosity()
    disable_progress_bars()
    set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        set_verbosity(verbosity)
        if not silent_before:
            enable_progress_bars()
