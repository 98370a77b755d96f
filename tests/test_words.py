"""Checker of words: its matches in code and documents, with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_words import WordList

WORDS = WordList({"whoever|somebody": "a role", "where it": "if"}, ("Is somebody there?",))

CODE = '''"""Starts what
somebody reads."""

# Ends where
# it began.
def f(name: str) -> str:
    return f"{name} asks whoever is there: Is somebody there?"  # Somebody
'''

DOCUMENT = """# Title

```
whoever
```

Asks where it
matters. Is somebody there?
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("code.py", CODE, [(2, "somebody"), (4, "where it"), (7, "Somebody"), (7, "whoever")]),
        ("document.md", DOCUMENT, [(7, "where it")]),
    ],
)
def test_words_are_found_with_their_lines(
    name: str, text: str, expected: list[tuple[int, str]], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert sorted((line, words) for line, words, _ in WORDS.matches(path)) == expected


def test_the_list_of_the_project_is_short() -> None:
    words = WordList.read()
    assert 0 < len(words.advice) <= 10
    assert "Is anybody there?" in words.allowed
