"""Drawn clips with ground truth."""
