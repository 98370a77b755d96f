"""What works on this machine: one check for each thing, and for what does not work, what to do."""

from __future__ import annotations

from stream.doctor.check import Check
from stream.doctor.examination import all_needed_work, examine

__all__ = ["Check", "all_needed_work", "examine"]
