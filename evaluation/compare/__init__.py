"""Two ways to answer the same questions, side by side: `python -m evaluation.compare`."""
