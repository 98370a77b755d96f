"""docs/modules.md: every package of the product, with the first paragraph of its docstring."""

from __future__ import annotations

import ast
from pathlib import Path

from scripts.config_reference import linked, text_of

ROOT = Path(__file__).resolve().parents[1]

INTRODUCTION = """# Modules

Every folder of the product; the first line of each file says what is in it.
[architecture.md](architecture.md) shows how they hang together.
"""


def modules_page() -> str:
    """Return the page, with one line a package."""
    page = INTRODUCTION
    for product in ("arr_coc", "stream"):
        page += "\n| folder | contents |\n| --- | --- |\n"
        for path in sorted((ROOT / product).rglob("__init__.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            summary = linked(text_of(docstring.partition("\n\n")[0]), "modules.md")
            page += f"| `{path.parent.relative_to(ROOT).as_posix()}/` | {summary} |\n"
    return page
