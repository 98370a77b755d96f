"""A model's checkpoint on the hub before it is downloaded: configuration and headers of its weight files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from arr_coc.bounded_json import FILE_BYTES_MAX, parse_json
from arr_coc.errors import ModelError
from arr_coc.hub import hub_request
from arr_coc.qwen.checkpoint import Checkpoint, parse_checkpoint
from arr_coc.qwen.weight_files import INDEX, WEIGHTS, TensorInfo

LIMIT_S = 10.0
"""Time limit for a reply of the hub; a failed request is not repeated."""

WHOLE_LIMIT_S = 60.0
"""Time limit for a whole file."""

HEADERS_AT_ONCE = 8

SHARDS_MAX = 1000


def remote_checkpoint(name: str) -> Checkpoint:
    """Return the checkpoint of the hub's model `name`, from a download of some hundred kB without weights.

    The hub's cache is not used, as a partial model in it would look complete. Raises ModelNotFound, HubUnreachable and
    ModelError as `hub.hub_request`, and ModelError as `checkpoint.parse_checkpoint`.
    """
    from huggingface_hub import errors, parse_safetensors_file_metadata

    with hub_request(name):
        try:
            config = _object(name, "config.json")
            shards = _shards(name)
            with ThreadPoolExecutor(HEADERS_AT_ONCE) as pool:
                files = list(pool.map(partial(parse_safetensors_file_metadata, name), shards))
        except (errors.EntryNotFoundError, errors.SafetensorsParsingError) as error:
            raise ModelError(
                f"{name} on the hub has no config.json with safetensors weights", "take another version of the model"
            ) from error
    tensors = {
        key: TensorInfo(tuple(tensor.shape), tensor.dtype) for file in files for key, tensor in file.tensors.items()
    }
    return parse_checkpoint(config, tensors, name)


def _shards(name: str) -> list[str]:
    """Return the names of the model's weight files, from its index if it has one."""
    from huggingface_hub import errors

    try:
        weight_map = _object(name, INDEX).get("weight_map")
    except errors.EntryNotFoundError:
        return [WEIGHTS]
    if isinstance(weight_map, Mapping):
        shards = sorted(set(map(str, weight_map.values())))
    else:
        shards = []
    if not shards or len(shards) > SHARDS_MAX or any("/" in shard for shard in shards):
        raise ModelError(f"{INDEX} of {name} on the hub lists no usable weight files", "take another model")
    return shards


def _object(name: str, file: str) -> dict[str, Any]:
    """Return the JSON object in a file of the model. Raises ModelError for any other content."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    headers = build_hf_headers() | {"Accept-Encoding": "identity"}  # a compressed file has no known length
    until_s = time.monotonic() + WHOLE_LIMIT_S
    data = b""
    with get_session().stream("GET", hf_hub_url(name, file), headers=headers, timeout=LIMIT_S) as reply:
        hf_raise_for_status(reply)
        for part in reply.iter_raw():
            data += part
            if len(data) > FILE_BYTES_MAX or time.monotonic() > until_s:
                raise ModelError(f"the {file} of {name} on the hub has no end", "take another model")
    try:
        values = parse_json(data)
    except ValueError as error:
        raise ModelError(
            f"the {file} of {name} on the hub is not usable JSON ({error})", "take another model"
        ) from error
    if not isinstance(values, dict):
        raise ModelError(f"the {file} of {name} on the hub holds no JSON object", "take another model")
    return values
