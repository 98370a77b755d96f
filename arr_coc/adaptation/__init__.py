"""Allocators adapted to a model: what they learn from, losses, training, measuring."""
