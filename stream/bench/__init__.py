"""Measuring runs: what is recorded, what each figure means, how several runs and two configurations compare."""
