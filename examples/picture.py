"""Ask about a picture with few of its tokens: `examples/picture.py [PICTURE] [QUESTION]`."""

import sys

import cv2

from arr_coc import ARRCOCQwen
from stream.scenes import load_scene

picture = cv2.imread(sys.argv[1])[..., ::-1] if len(sys.argv) > 1 else load_scene("static").render(0)
question = sys.argv[2] if len(sys.argv) > 2 else "Where is the red circle?"

model = ARRCOCQwen.from_pretrained()  # the bundled one; give a folder or hub name of a Qwen-VL model for real pictures
result = model.generate(picture, question, budget=0.27)
print(f"{result.text}  ({result.tokens_used} visual tokens of {result.heatmap.size})")

heat = cv2.applyColorMap((255 * result.heatmap / result.heatmap.max()).astype("uint8"), cv2.COLORMAP_INFERNO)
cv2.imwrite("heatmap.png", cv2.resize(heat, picture.shape[1::-1], interpolation=cv2.INTER_NEAREST))
