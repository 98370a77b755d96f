"""Ask several questions about every second of a video: `examples/several_questions.py [VIDEO]`."""

import sys

import av

from arr_coc import ARRCOCQwen
from stream.scenes import load_scene

QUESTIONS = ["Is there a red circle?", "Is there a green star?", "Say what happens."]


def pictures():
    """Yield a time in seconds and an RGB picture for each second."""
    if len(sys.argv) == 1:
        scene = load_scene("demo")
        yield from ((index / scene.fps, scene.render(index)) for index in range(0, scene.frames, 4 * round(scene.fps)))
        return
    with av.open(sys.argv[1]) as container:
        due_s = 0.0
        for frame in container.decode(video=0):
            if frame.time >= due_s:
                yield frame.time, frame.to_ndarray(format="rgb24")
                due_s += 1.0


model = ARRCOCQwen.from_pretrained()
for at_s, picture in pictures():
    for question, answer in zip(QUESTIONS, model.generate(picture, QUESTIONS, budget=64), strict=True):
        print(f"{at_s:5.1f}  {question:24} {answer.text}")
