"""Public benchmarks in the formats in which they are published."""
