"""Drawn scenes: small animated worlds whose every frame has a known, true description."""

from __future__ import annotations

from stream.scenes.catalogue import SCENE_NAMES, load_scene, open_scene
from stream.scenes.paced import PACED_SCENES, PacedScene
from stream.scenes.scene import Scene
from stream.scenes.world import Facts, Thing

__all__ = ["PACED_SCENES", "SCENE_NAMES", "Facts", "PacedScene", "Scene", "Thing", "load_scene", "open_scene"]
