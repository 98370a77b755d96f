"""Checker of words in comments, docstrings, messages, documents, and names.

Run `python -m scripts.check_words [--count] [PATH …]`.

Prints each word of `scripts/words.toml` with its place and what to write instead; exits with 1 if there is any. Without
paths it checks the Python files and documents that git knows.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("words.toml")
TEXTS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


@dataclass(frozen=True)
class WordList:
    """Patterns with what to write instead, and texts in which they may stand; the same for names of variables.

    Attributes:
        advice: What to write instead of a pattern, in texts.
        allowed: Texts in which patterns may stand.
        names: What to name a variable instead, by names.
        exceptions: Names that stay, by the end of a file's path.
    """

    advice: dict[str, str]
    allowed: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    exceptions: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = LIST) -> WordList:
        """Read a list. Raises OSError, or ValueError if it is no TOML."""
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        names = {name: advice for group, advice in tables["names"].items() for name in group.split()}
        return cls(tables["words"], tuple(tables["allowed"]["texts"]), names, tables["allowed"]["names"])

    def name_advice(self, name: str, path: Path) -> str | None:
        """Return what to name a variable of a file instead, None if the name may stand."""
        advice = self.names.get(name.strip("_"))
        if advice and any(name in names and path.as_posix().endswith(end) for end, names in self.exceptions.items()):
            return None
        return advice

    def matches(self, text: str) -> Iterator[tuple[int, str, str]]:
        """Yield the line, from 0, the words and the advice of each match in a text; a match may cross a line's end."""
        for allowed in self.allowed:
            text = text.replace(allowed, "·" * len(allowed))
        for pattern, advice in self.advice.items():
            expression = r"\b(?:" + pattern.replace(" ", r"(?:\s|#)+") + r")\b"
            for match in re.finditer(expression, text, re.IGNORECASE):
                yield text.count("\n", 0, match.start()), " ".join(re.split(r"[\s#]+", match.group())), advice


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments, strings and names of functions and classes of a Python file with their first lines.

    Comments one below the other are one text.
    """
    comment: list[str] = []
    first, before = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        continues = token.type == tokenize.COMMENT and line == first + len(comment)
        if comment and not continues and token.type not in (tokenize.NL, tokenize.NEWLINE):
            yield first, "\n".join(comment)
            comment = []
        if token.type == tokenize.COMMENT:
            first = first if comment else line
            comment.append(token.string)
        elif token.type in TEXTS:
            yield line, token.string
        elif before in ("def", "class") and "_" in token.string:  # names of one word may be a protocol's
            yield line, token.string.replace("_", " ")
        before = token.string


def variables(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line, from 1, and the name of each variable, argument, field and attribute that a Python file sets."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def document_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the text of a document without code."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    yield 1, re.sub(r"`[^`\n]+`", blank, re.sub(r"^ *```.*?^ *```", blank, source, flags=re.MULTILINE | re.DOTALL))


def violations(path: Path, words: WordList) -> list[tuple[int, str, str]]:
    """Return the line, the words and the advice for each match in a file, in order."""
    source, is_python = path.read_text(encoding="utf-8"), path.suffix == ".py"
    texts = python_texts(source) if is_python else document_texts(source)
    names = variables(source) if is_python else ()
    return sorted(
        [
            *((first + line, match, advice) for first, text in texts for line, match, advice in words.matches(text)),
            *((line, name, advice) for line, name in names if (advice := words.name_advice(name, path))),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--count", action="store_true", help="print how often each word occurs instead of its places")
    arguments = parser.parse_args()
    listing = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", ":!tests/test_words.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    words, counts = WordList.read(), Counter[str]()
    for path in arguments.paths or [ROOT / name for name in listing.stdout.split()]:
        for line, match, advice in violations(path, words):
            counts[match.lower()] += 1
            if not arguments.count:
                print(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {match!r}: {advice}")
    if arguments.count:
        print("\n".join(f"{count:5} {match}" for match, count in counts.most_common()))
    print(f"{counts.total()} in all" if counts else "none of the words of scripts/words.toml occurs")
    return int(bool(counts))


if __name__ == "__main__":
    sys.exit(main())
