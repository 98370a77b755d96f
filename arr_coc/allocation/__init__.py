"""Relevance map to regions, frame after frame."""
