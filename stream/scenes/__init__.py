"""Drawn scenes: small animated worlds whose every frame has a known, true description."""

from __future__ import annotations

from stream.scenes.catalogue import SCENE_NAMES, load_scene
from stream.scenes.scene import Scene
from stream.scenes.world import Facts, Thing

__all__ = ["SCENE_NAMES", "Facts", "Scene", "Thing", "load_scene"]
