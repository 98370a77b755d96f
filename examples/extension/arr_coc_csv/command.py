"""Command: the answers of a file, counted."""

import csv
from typing import Annotated

import typer

from stream.logs import print_line


def count(path: Annotated[str, typer.Argument(metavar="FILE", help="A .csv of answers.")]) -> int:
    """Count the answers of a .csv."""
    with open(path, newline="", encoding="utf-8") as file:
        dialect = csv.Sniffer().sniff(file.readline())
        texts = [row[1] for row in csv.reader(file, dialect)]
    print_line(f"{len(texts)} answers, {len(set(texts))} of them different")
    return 0
