"""Hooks of mkdocs: the site holds the files outside docs/ that its pages link to; nothing comes from the network.

Pages outside docs/ keep their path in the site (README.md is its index); linked files of other kinds are copied along.
Links are rewritten from paths of the project to paths of the site. A link to something absent is an error.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs/"
INDEX = "README.md"
LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")
FETCHED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
CANONICAL = 'rel="canonical"'

log = logging.getLogger("mkdocs.hooks.docs_site")


def site_path(path: str) -> str:
    """Return the place in the site of a file of the project."""
    return "index.md" if path == INDEX else path.removeprefix(DOCS)


def project_path(page: str) -> str:
    """Return the file of the project from which a page of the site is made."""
    if page == "index.md":
        return INDEX
    return DOCS + page if (ROOT / DOCS / page).is_file() else page


def linked(page: str, text: str) -> dict[str, str]:
    """Return the local links of a page, each with the path in the project that it leads to."""
    folder = posixpath.dirname(page)
    return {
        link: posixpath.normpath(posixpath.join(folder, urlsplit(link).path))
        for link in LINK.findall(text)
        if urlsplit(link).path and not urlsplit(link).scheme
    }


def in_navigation(entry: Any) -> list[str]:
    """Return the pages that a part of mkdocs' navigation names."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in in_navigation(part)]


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the navigation that are not in docs/, and every file of the project that a page links to."""
    queue = sorted({project_path(page) for page in in_navigation(config.nav)})
    pages = set(queue)
    while queue:
        page = queue.pop()
        if not page.startswith(DOCS):
            files.append(File.generated(config, site_path(page), abs_src_path=str(ROOT / page)))
        if not page.endswith(".md"):
            continue
        for link, path in linked(page, (ROOT / page).read_text(encoding="utf-8")).items():
            if not (ROOT / path).is_file():
                raise PluginError(f"{page} links to {link}, which is no file of this project")
            if path not in pages and not (path.startswith(DOCS) and not path.endswith(".md")):
                pages.add(path)
                queue.append(path)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite a page's links from paths of the project to paths of the site."""
    source = page.file.src_uri
    targets = linked(project_path(source), markdown)

    def rewritten(match: re.Match[str]) -> str:
        link = match[0]
        if link not in targets:
            return link
        path = posixpath.relpath(site_path(targets[link]), posixpath.dirname(source) or ".")
        fragment = urlsplit(link).fragment
        return f"{path}#{fragment}" if fragment else path

    return LINK.sub(rewritten, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Warn of everything that a browser would fetch from elsewhere; with --strict a warning is an error."""
    for tag in FETCHED.findall(output):
        if CANONICAL not in tag:
            log.warning("%s would fetch %s", page.file.src_uri, tag)
    return output
