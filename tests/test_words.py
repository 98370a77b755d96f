"""Checker of words: its matches in code and documents, with their lines."""

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


NAMES = WordList({}, names={"found": "a noun", "each": "a noun"}, exceptions={"reports/json.py": ["found"]})

VARIABLES = """\
def matches(found, labels, *, _found=None):
    for each in found:
        labels.found = [each for each in found]
    with open(each) as found:
        found.each += len(found_labels := {})
    match labels:
        case [each, *found]:
            return founds(found=each)
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "code.py",
            [
                (1, "_found"),
                (1, "found"),
                (2, "each"),
                (3, "each"),
                (3, "found"),
                (4, "found"),
                (5, "each"),
                (7, "each"),
                (7, "found"),
            ],
        ),
        ("reports/json.py", [(1, "_found"), (2, "each"), (3, "each"), (5, "each"), (7, "each")]),
    ],
)
def test_names_of_variables_are_nouns(name: str, expected: list[tuple[int, str]], tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(VARIABLES, encoding="utf-8")
    assert [(line, variable) for line, variable, _ in violations(path, NAMES)] == expected


def test_the_list_of_the_project_is_read() -> None:
    assert "Is anybody there?" in WordList.read().allowed
    assert next(WordList.read().matches("nobody"))[2].startswith("name the agent")
    assert WordList.read().name_advice("_found", Path("code.py"))
    assert WordList.read().name_advice("matches", Path("code.py")) is None
