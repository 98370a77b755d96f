"""Publish boxes of what moves in a video to a run, whose tokens they draw: `examples/detector.py VIDEO [ADDRESS]`, then

python run_stream.py watch VIDEO --detections zmq+tcp://127.0.0.1:5559

VIDEO: an address that several programs can read, such as that of an RTSP camera, or a file, which is repeated.
"""

import sys
import time

import cv2
import msgspec
import zmq

LEAST_SHARE, MOST_SHARE = 0.001, 0.5  # of the picture; smaller blobs are noise, larger ones a change of light

source = sys.argv[1]
socket = zmq.Context().socket(zmq.PUB)
socket.sndhwm = 2  # a slow run misses messages instead of receiving old ones
socket.bind(sys.argv[2] if len(sys.argv) > 2 else "tcp://127.0.0.1:5559")

video = cv2.VideoCapture(source)
if not video.isOpened():
    sys.exit(f"cannot open {source!r}; name a file, or the address of a camera")
pause_s = 0.0 if "://" in source else 1 / (video.get(cv2.CAP_PROP_FPS) or 25)
background = cv2.createBackgroundSubtractorMOG2(history=200, detectShadows=False)
while True:
    good, frame = video.read()
    captured_ns = time.time_ns()
    if not good:
        if not pause_s:
            sys.exit("the camera has ended")
        video.set(cv2.CAP_PROP_POS_FRAMES, 0)
        continue
    height, width = frame.shape[:2]
    mask = cv2.dilate(background.apply(frame), None, iterations=4)
    blobs, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    least, most = LEAST_SHARE * width * height, MOST_SHARE * width * height
    boxes = [cv2.boundingRect(blob) for blob in blobs if least < cv2.contourArea(blob) < most]
    objects = [{"label": "moving", "box": [x, y, x + w, y + h], "score": 0.9} for x, y, w, h in boxes]
    message = {"unix_ns": captured_ns, "width_px": width, "height_px": height, "objects": objects}
    socket.send(msgspec.json.encode(message))
    time.sleep(pause_s)
