"""Choose tokens for a relevance map of your own: here a spotlight on the middle of the frame."""

import numpy as np
import torch

from arr_coc import allocate

rows, cols = np.mgrid[0:22, 0:40]  # tiles of 32×32 pixels of a 720p frame
spotlight = np.exp(-((rows - 11) ** 2 + (cols - 20) ** 2) / 30).astype(np.float32)

allocation = allocate(torch.from_numpy(spotlight), 100, "foveated")
print(f"{len(allocation.regions)} tokens instead of {spotlight.size}")
for level, count in zip(*np.unique(allocation.regions[:, 0], return_counts=True), strict=True):
    print(f"  {count} of {2**level}×{2**level} tiles")
