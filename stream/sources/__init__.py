"""Where frames come from: files, cameras, networks, pictures and generated scenes, behind one contract."""

from __future__ import annotations

from stream.sources.base import SkippedItem, Source, SourceFrame, SourceInfo

__all__ = ["SkippedItem", "Source", "SourceFrame", "SourceInfo"]
