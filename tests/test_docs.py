"""The documents: every local link has a target, and the API reference names existing objects."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[1]
PATTERNS = ("*.md", "docs/**/*.md", "*/README.md", "models/*/README.md")
PAGES = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The fragments that a page's headings give, as GitHub makes them."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(prose(page))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (page.parent / parts.path).resolve() if parts.path else page
        assert target.is_file(), f"{link} leads nowhere"
        assert not parts.fragment or parts.fragment in anchors(target), f"{link} names no heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_headings_differ_within_a_page(page: Path) -> None:
    headings = HEADING.findall(prose(page))
    assert len(headings) == len(set(headings)), "two headings of one page have the same anchor"


REFERENCED = [
    name
    for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("name", REFERENCED)
def test_the_reference_names_what_is_there(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute)


@pytest.mark.parametrize("name", ["docs/architecture.md", "docs/runtime.md", "docs/methods.md", "CONTRIBUTING.md"])
def test_the_files_that_a_page_names_are_there(name: str) -> None:
    names = re.findall(r"`([\w/]+\.py)`", prose(ROOT / name))
    assert [path for path in names if "NAME" not in path and not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_of_a_page_exist(page: Path) -> None:
    modules = re.findall(
        r"-m ((?:benchmarks|evaluation|scripts|tests|training)\.[\w.]*\w)", page.read_text(encoding="utf-8")
    )
    paths = [ROOT / module.replace(".", "/") for module in modules]
    assert [path for path in paths if not path.with_suffix(".py").is_file() and not path.is_dir()] == []
