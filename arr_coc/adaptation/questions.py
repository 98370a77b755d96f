"""Questions to learn from: a file of one's own, or generic ones."""

from __future__ import annotations

from pathlib import Path

from arr_coc.errors import OptionError

GENERIC_QUESTIONS = (
    "Describe the picture.",
    "Say what happens.",
    "What is in the middle of the picture?",
    "What is in the upper left?",
    "What is in the upper right?",
    "What is in the lower left?",
    "What is in the lower right?",
    "What does the text say?",
    "What number is shown?",
    "What is written on the sign?",
    "Is there a person?",
    "Where is the person?",
    "What is the person doing?",
    "What is the person holding?",
    "How many people are there?",
    "Who is on the left?",
    "Is there a face, and where does it look?",
    "Is there a car?",
    "Where is the vehicle?",
    "What colour is the car?",
    "How many vehicles are there?",
    "Is there an animal?",
    "Where is the dog?",
    "What is the animal doing?",
    "What is the largest thing?",
    "What is the smallest thing?",
    "What is the brightest thing?",
    "What is red?",
    "What is green?",
    "What is blue?",
    "What is yellow?",
    "What is white?",
    "What is black?",
    "What is moving?",
    "What is in the foreground?",
    "What is in the background?",
    "What is on the table?",
    "What is on the floor?",
    "What is in the sky?",
    "Is the door open?",
    "Where is the window?",
    "What is on the screen?",
    "Which button is there?",
    "Is there anything unusual?",
    "Is anything damaged?",
    "Is there a plant or a tree?",
    "What food is there?",
    "Which shape is there?",
)
"""Asked if no questions are given: of places, things, colours, text and what happens, for pictures of any kind."""

LONGEST_CHARS = 2000


def read_question_file(path: Path) -> tuple[str, ...]:
    """Return the questions of a text file, one a line, each once; empty lines are left out.

    Raises OptionError if it cannot be read, is no text, holds no question, or one that is too long.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise OptionError(f"{path} is no text in UTF-8", "write one question a line") from error
    except OSError as error:
        raise OptionError(
            f"cannot read {path}: {error.strerror}", "name a text file with one question a line"
        ) from error
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_CHARS or "\0" in line:
            if "\0" in line:
                problem = "no text"
            else:
                problem = f"{len(line)} characters long"
            raise OptionError(f"line {number} of {path} is {problem}", "write one question a line")
    questions = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not questions:
        raise OptionError(f"{path} holds no question", "write one question a line, or leave it out for generic ones")
    return questions
