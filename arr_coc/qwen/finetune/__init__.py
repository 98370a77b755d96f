"""Batched forward of a model and its allocator, for training and evaluation: `ARRCOCQwen.forward` and its parts."""
