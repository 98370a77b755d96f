"""Texture channels to three scores to one relevance map."""
