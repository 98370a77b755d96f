"""Releases: version, changelog and tag belong together; workflows run targets of the Makefile with few permissions."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.check_release import problem
from scripts.check_schemas import SCHEMAS

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = 'name = "x"\nversion = "1.2.0"\n'


def workflow(path: Path) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    return loaded


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in workflow(path)["jobs"].items():
            yield f"{path.stem}: {name}", job


def steps() -> Iterator[dict[str, Any]]:
    for _, job in jobs():
        yield from job.get("steps", ())


def test_the_version_and_the_changelog_agree() -> None:
    assert problem((ROOT / "pyproject.toml").read_text("utf-8"), (ROOT / "CHANGELOG.md").read_text("utf-8"), "") is None


@pytest.mark.parametrize(
    ("heading", "tag", "message"),
    [
        ("1.2.0 — 2026-11-29", "v1.2.0", None),
        ("1.2.0 — unreleased", "", None),
        ("1.2.0 — unreleased", "v1.2.0", "is unreleased"),
        ("1.2.0 — soon", "", "should end with a date"),
        ("1.1.0 — 2026-11-29", "v1.2.0", "begins with 1.1.0"),
        ("1.2.0 — 2026-11-29", "1.2.0", "tag it v1.2.0"),
        ("1.2.0 — 2026-11-29", "v1.3.0", "tag it v1.2.0"),
    ],
)
def test_what_a_release_must_have(heading: str, tag: str, message: str | None) -> None:
    found = problem(PROJECT, f"# Changelog\n\n## {heading}\n\n## 1.0.0 — 2026-01-01\n", tag)
    assert (found is None) if message is None else message in (found or "")


def test_texts_without_a_version_are_reported() -> None:
    assert "no version" in (problem("", "", "") or "")
    assert "no heading" in (problem(PROJECT, "# Changelog\n", "") or "")


def test_a_tag_of_this_rule_starts_the_release() -> None:
    # YAML 1.1 reads the key `on` as true.
    assert workflow(ROOT / ".github" / "workflows" / "release.yml")[True] == {"push": {"tags": ["v*"]}}


def test_shell_of_workflows_is_a_target_or_the_checks() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    lines = [step["run"] for step in steps() if "run" in step]
    assert lines
    for line in lines:
        assert line == "bash .ci/run" or line.removeprefix("make ") in targets, line


def test_actions_are_pinned_by_commit() -> None:
    used = {step["uses"] for step in steps() if "uses" in step}
    assert [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)] == []
    text = "".join(path.read_text("utf-8") for path in WORKFLOWS)
    assert set(re.findall(r"uses: (\S+@\S+) # v\d+\.\d+\.\d+$", text, re.MULTILINE)) == used


def test_jobs_have_the_permissions_that_they_need_and_end() -> None:
    for path in WORKFLOWS:
        loaded = workflow(path)
        assert loaded["permissions"] == {}
        assert loaded["concurrency"]["group"]
    writing = {}
    for name, job in jobs():
        assert "uses" in job or job["timeout-minutes"] <= 120
        allowed = {scope for scope, access in job["permissions"].items() if access == "write"}
        if allowed:
            writing[name] = allowed
    assert writing == {
        "documents: publish": {"pages", "id-token"},
        "release: pypi": {"id-token"},
        "release: images": {"packages"},
    }
    for step in steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_every_file_with_a_schema_is_checked() -> None:
    for pattern in SCHEMAS.values():
        assert list(ROOT.glob(pattern)), pattern


DESCRIBED = """
import runpy, setuptools, sys
given = {}
setuptools.setup = given.update
runpy.run_path(sys.argv[1])
print(given["project_urls"].get("Repository"))
print(given["long_description"])
"""


@pytest.mark.parametrize("repository", ["", "https://host.example/owner/name"])
def test_links_of_the_long_description_are_absolute_once_the_address_is_known(repository: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", DESCRIBED, str(ROOT / "setup.py")],
        env={"ARR_COC_REPOSITORY": repository},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    first, _, text = process.stdout.partition("\n")
    links = re.findall(r"\]\(([^)]+)\)", text)
    local = [link for link in links if not re.match(r"[a-z]+:|#", link)]
    assert first == (repository or "None")
    assert bool(local) != bool(repository)
    if repository:
        images = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
        assert images
        assert all("/raw/v" in link for link in images)
        assert any("/blob/v" in link and link.endswith("docs/cli.md") for link in links)
