"""Sources of frames: files, cameras, networks, pictures and generated scenes, behind one contract."""

from __future__ import annotations

from stream.media import SkippedItem, Source, SourceFrame, SourceInfo

__all__ = ["SkippedItem", "Source", "SourceFrame", "SourceInfo"]
