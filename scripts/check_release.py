"""Checks that a tag, the version in pyproject.toml and the newest heading of CHANGELOG.md belong together.

    TAG=v0.1.0 python3 scripts/check_release.py

Needs nothing but Python. Without a tag, the heading may still say "unreleased".
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r'^version = "(.+)"$', re.MULTILINE)
HEADING = re.compile(r"^## (\S+) — (.+)$", re.MULTILINE)


def problem(project: str, changelog: str, tag: str) -> str | None:
    """Return what is wrong with a release, or None.

    Args:
        project: Text of pyproject.toml.
        changelog: Text of CHANGELOG.md.
        tag: Tag of the release, `v` and the version; empty if there is none yet.
    """
    version = VERSION.search(project)
    heading = HEADING.search(changelog)
    if version is None:
        return "pyproject.toml has no version"
    if heading is None:
        return 'CHANGELOG.md has no heading "## VERSION — DATE"'
    if heading[1] != version[1]:
        return f"CHANGELOG.md begins with {heading[1]}, but the version in pyproject.toml is {version[1]}"
    if heading[2] != "unreleased" and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        return f"the heading of {heading[1]} in CHANGELOG.md should end with a date, YYYY-MM-DD, got {heading[2]!r}"
    if tag and tag != f"v{version[1]}":
        return f"the tag is {tag}, but the version in pyproject.toml is {version[1]}; tag it v{version[1]}"
    if tag and heading[2] == "unreleased":
        return f"CHANGELOG.md says that {heading[1]} is unreleased; write the date of the release there"
    return None


def main() -> int:
    texts = [(ROOT / name).read_text("utf-8") for name in ("pyproject.toml", "CHANGELOG.md")]
    found = problem(*texts, os.environ.get("TAG", ""))
    if found is not None:
        print(f"error: {found}", file=sys.stderr)
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
