"""Evaluation of a model that is shown fewer visual tokens: its answers, and their cost."""
