"""Texture updates, motion and scene cuts as frames follow each other."""
