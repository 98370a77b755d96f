"""Checker of words: what it finds in code and documents, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_words import WordList, violations

WORDS = WordList({"whoever|somebody": "a role", "where it": "if"}, ("Is somebody there?",))

CODE = '''"""Starts what
somebody reads."""

# Ends where
# it began.
def where_it_ends(name: str) -> str:
    somebody = f"{name} asks whoever is there: Is somebody there?"
    return somebody  # Somebody
'''

DOCUMENT = """# Title

Asks `somebody`, where it
matters. Is somebody there?

```
whoever
```
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("code.py", CODE, [(2, "somebody"), (4, "where it"), (6, "where it"), (7, "whoever"), (8, "Somebody")]),
        ("document.md", DOCUMENT, [(3, "where it")]),
    ],
)
def test_words_are_found_with_their_lines(
    name: str, text: str, expected: list[tuple[int, str]], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert [(line, words) for line, words, _ in violations(path, WORDS)] == expected


def test_the_list_of_the_project_is_read() -> None:
    assert "Is anybody there?" in WordList.read().allowed
    assert next(WordList.read().matches("nobody"))[2].startswith("name the agent")
