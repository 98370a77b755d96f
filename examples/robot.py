"""Stop a robot while a watch is answered with yes. Start a run, then this program:

python run_stream.py watch 0 --watch "Is there a person?" --publish tcp://127.0.0.1:5556
"""

import sys

import msgspec
import zmq

socket = zmq.Context().socket(zmq.SUB)
socket.rcvhwm = 8  # a busy subscriber misses messages instead of receiving old ones
socket.connect(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5556")
for topic in ("turned", "summary"):
    socket.subscribe(topic)

print("driving", flush=True)
while True:
    event = msgspec.msgpack.decode(socket.recv_multipart()[1])
    if event["topic"] == "summary":
        break
    print("stop" if event["to"] == "yes" else "driving", f"at {event['pts_s']:.1f} s", flush=True)
print("the run has ended; stop")
