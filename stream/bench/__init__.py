"""Measuring runs: recorded values, the meaning of each figure, comparison of several runs and two configurations."""
