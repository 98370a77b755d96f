"""The files of deploy/ as tests read them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def documents(path: Path) -> list[Any]:
    """The documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document is not None]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """The containers of the Kubernetes manifests."""
    for name in ("answers.yaml", "cameras.yaml"):
        for document in documents(DEPLOY / "kubernetes" / name):
            template = document["spec"].get("template")
            yield from ((name, container) for container in template["spec"]["containers"]) if template else ()


def services() -> dict[str, dict[str, Any]]:
    """The services of compose.yaml by name."""
    found: dict[str, dict[str, Any]] = documents(DEPLOY / "compose.yaml")[0]["services"]
    return found


def copied_to_the_image() -> list[str]:
    """Files and folders of this project that the Dockerfile copies."""
    lines = (DEPLOY / "Dockerfile").read_text("utf-8")
    return [name for line in re.findall(r"^COPY (?!--)(.+) \S+$", lines, re.MULTILINE) for name in line.split()]


def program_of(name: str, package: str) -> str:
    """The path of a program; skips the test without it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name}: {package}")
    return path
