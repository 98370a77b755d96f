"""Tables of docs/modules.md: every module with the first paragraph of its docstring, below the headings of the page."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from scripts.config_reference import linked, text_of

ROOT = Path(__file__).resolve().parents[1]
SECTION = re.compile(r"^## `([\w/]+)/`\n\n(.*?)(?:\| .*?)?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def modules_page(text: str) -> str:
    """Return the page with its tables written anew; a package without a heading comes last."""
    packages = _packages()
    introduction, sections = text[: text.index("\n## ")], dict(SECTION.findall(text))
    names = [*(name for name in sections if name in packages), *sorted(packages.keys() - sections.keys())]
    return f"{introduction}\n" + "\n".join(
        f"## `{name}/`\n\n{sections.get(name, '')}{_table(packages[name])}" for name in names
    )


def _packages() -> dict[str, list[Path]]:
    packages: dict[str, list[Path]] = defaultdict(list)
    for package in ("stream", "arr_coc"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "__init__.py":
                packages[path.parent.relative_to(ROOT).as_posix()].append(path)
    return packages


def _table(modules: list[Path]) -> str:
    rows = "".join(f"| `{path.name}` | {_summary(path)} |\n" for path in modules)
    return f"| file | contents |\n| --- | --- |\n{rows}"


def _summary(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return linked(text_of(docstring.partition("\n\n")[0]), "modules.md")
