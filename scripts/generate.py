"""Generator of the files that are made from the code: `python -m scripts.generate`. A test compares them.

Each is written before the next is made, as the later ones show what the earlier ones declare.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Write all files that have changed, and print their names."""
    for name, contents in GENERATED.items():
        path = ROOT / name
        current = path.read_text(encoding="utf-8")
        if (text := contents(current)) != current:
            path.write_text(text, encoding="utf-8")
            print(name)


def _option_table(_: str) -> str:
    from scripts.option_table import option_table

    return option_table()


def _configuration(_: str) -> str:
    from scripts.config_reference import configuration_page

    return configuration_page()


def _cli(current: str) -> str:
    from scripts.cli_reference import cli_page
    from scripts.type_tables import with_outputs

    return with_outputs(cli_page(current))


def _sources(current: str) -> str:
    from scripts.type_tables import sources_page

    return sources_page(current)


def _modules(_: str) -> str:
    from scripts.module_reference import modules_page

    return modules_page()


GENERATED: dict[str, Callable[[str], str]] = {
    "stream/options/table.py": _option_table,
    "docs/configuration.md": _configuration,
    "docs/cli.md": _cli,
    "docs/sources.md": _sources,
    "docs/modules.md": _modules,
}
"""File → function that makes its text from the present one."""


if __name__ == "__main__":
    main()
