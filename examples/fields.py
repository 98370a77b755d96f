"""Answers as values in place of sentences, for every two seconds of a drawn clip: `examples/fields.py`."""

from arr_coc import ARRCOCQwen
from stream.scenes import load_scene

model, scene = ARRCOCQwen.from_pretrained(), load_scene("demo")
for index in range(0, scene.frames, 2 * round(scene.fps)):
    star = model.generate(scene.render(index), "Is there a green star?", budget=64, schema=["yes", "no"])
    print(f"{index / scene.fps:5.1f}  {star.fields}")
