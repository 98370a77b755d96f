"""Send frames from your own program to a run: `examples/own_source.py [ADDRESS]`, then

python run_stream.py watch zmq+tcp://127.0.0.1:5558
"""

import itertools
import sys
import time

import msgspec
import numpy as np
import zmq

WIDTH, HEIGHT, FPS = 640, 384, 10

socket = zmq.Context().socket(zmq.PUB)
socket.sndhwm = 2  # a slow run misses frames instead of receiving old ones
socket.bind(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5558")
for number in itertools.count():
    frame = np.full((HEIGHT, WIDTH, 3), 180, np.uint8)
    left = 16 * number % (WIDTH - 96)
    frame[144:240, left : left + 96] = (220, 40, 40)
    header = {"v": 1, "width": WIDTH, "height": HEIGHT, "format": "rgb24", "t_ns": time.monotonic_ns(), "seq": number}
    socket.send_multipart([msgspec.msgpack.encode(header), frame])
    time.sleep(1 / FPS)
