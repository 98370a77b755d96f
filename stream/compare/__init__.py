"""Comparison of answers about one picture: models in a process of their own, and its handle."""
