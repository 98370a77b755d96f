"""Checker of words in Python files and documents: `python -m scripts.check_words [PATH …]`.

Prints each word of `scripts/words.toml` with its place and what to write instead; exits with 1 if there is any. Without
paths it checks the Python files and documents that git knows.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("words.toml")


@dataclass(frozen=True)
class WordList:
    """Patterns of words, and the texts in which they may stand."""

    advice: dict[str, str]
    """What to write instead, by pattern."""
    allowed: tuple[str, ...] = ()
    """Texts in which patterns may stand."""

    @classmethod
    def read(cls, path: Path = LIST) -> WordList:
        """Read a list. Raises OSError, or ValueError if it is no TOML."""
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(tables["words"], tuple(tables["allowed"]["texts"]))

    def matches(self, path: Path) -> Iterator[tuple[int, str, str]]:
        """Yield the line, from 1, the words and the advice of each match in a file; a match may cross a line's end."""
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            text = re.sub(r"^ *```.*?^ *```", _newlines, text, flags=re.MULTILINE | re.DOTALL)
        for allowed in self.allowed:
            text = text.replace(allowed, "")
        for pattern, advice in self.advice.items():
            expression = r"\b(?:" + pattern.replace(" ", r"[\s#]+") + r")\b"
            for match in re.finditer(expression, text, re.IGNORECASE):
                yield text.count("\n", 0, match.start()) + 1, " ".join(re.split(r"[\s#]+", match.group())), advice


def _newlines(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    arguments = parser.parse_args()
    command = ["git", "ls-files", "*.py", "*.md", ":!tests/test_words.py"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    words = WordList.read()
    count = 0
    for path in arguments.paths or [ROOT / name for name in listing.stdout.split()]:
        for line, match, advice in sorted(words.matches(path)):
            count += 1
            print(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {match!r}: {advice}")
    print(f"{count} in all" if count else "none of the words of scripts/words.toml occurs")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
