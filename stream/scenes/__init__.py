"""Drawn scenes: small animated worlds whose every frame has a known, true description."""

from __future__ import annotations

from stream.scenes.catalogue import SCENE_NAMES, load_scene, open_scene
from stream.scenes.drawing import GroundTruth, SceneObject
from stream.scenes.scene import PACED_SCENES, PacedScene, Scene

__all__ = [
    "PACED_SCENES",
    "SCENE_NAMES",
    "GroundTruth",
    "PacedScene",
    "Scene",
    "SceneObject",
    "load_scene",
    "open_scene",
]
