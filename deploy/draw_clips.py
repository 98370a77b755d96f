"""Draws the clips that compose.yaml plays as cameras: door.mp4 and yard.mp4, into a folder.

python deploy/draw_clips.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import av

from stream.scenes import load_scene

CLIPS = {"door": "demo", "yard": "moving"}
"""Name of a clip → the scene that it shows."""


def draw(path: Path, scene_name: str) -> None:
    """Write a scene as H.264 without B-frames, a key frame every second: a viewer of the stream begins at once."""
    scene = load_scene(scene_name)
    options = {"preset": "veryfast", "crf": "20", "g": str(scene.fps), "bf": "0"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=scene.fps, options=options)
        stream.width, stream.height, stream.pix_fmt = scene.width_px, scene.height_px, "yuv420p"
        for index in range(scene.frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(scene.render(index), format="rgb24")))
        container.mux(stream.encode())


def main() -> None:
    folder = Path(sys.argv[1])
    for name, scene_name in CLIPS.items():
        part = folder / f"{name}.part.mp4"
        draw(part, scene_name)
        part.rename(folder / f"{name}.mp4")


if __name__ == "__main__":
    main()
