"""docs/modules.md: the packages of the product, with the first clause of its docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from scripts.config_reference import linked, text_of

ROOT = Path(__file__).resolve().parents[1]

INTRODUCTION = """# Modules

Packages of the product. [architecture.md](architecture.md) shows how they hang together.
"""


def modules_page() -> str:
    """Return the page, with one line a package; what a package has inside is in its own files."""
    page = INTRODUCTION
    for product in ("arr_coc", "stream"):
        page += f"\n## {product}\n\n"
        packages = [*ROOT.glob(f"{product}/__init__.py"), *ROOT.glob(f"{product}/*/__init__.py")]
        packages += ROOT.glob(f"{product}/extensions/*/__init__.py")
        for path in sorted(packages):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            summary = linked(text_of(_shortened(docstring)), "modules.md")
            page += f"- `{path.parent.relative_to(ROOT).as_posix()}/`: {summary}\n"
    return page


def _shortened(docstring: str) -> str:
    """Return the first clause of a docstring; if that is a name alone, what follows its colon."""
    sentence = re.split(r"\.(?:\s|$)", docstring, maxsplit=1)[0].replace("\n", " ")
    head, _, tail = sentence.partition(": ")
    clause = tail if tail and len(head.split()) <= 3 else head
    clause = re.split("[;:] ", clause)[0]
    return clause[:1].upper() + clause[1:]
