"""Answers of several clients at once: scheduler, slots, model."""
