"""Output paths that have a meaning beyond a file."""

from __future__ import annotations

STDOUT = "-"
"""Place of an output that goes to standard output."""
