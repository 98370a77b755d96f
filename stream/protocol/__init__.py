"""Messages between stages, their encoding, and the buffers that they refer to."""
