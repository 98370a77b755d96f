"""Models with weights of 8 or 4 bits, made as a checkpoint is loaded to a CPU; `loading.py` imports them for these."""
