"""Where frames come from: files, still pictures and generated scenes, behind one contract."""

from __future__ import annotations

from stream.sources.base import SkippedItem, Source, SourceFrame, SourceInfo
from stream.sources.open import open_source

__all__ = ["SkippedItem", "Source", "SourceFrame", "SourceInfo", "open_source"]
