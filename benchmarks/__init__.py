"""Benchmarks of the program and its parts."""

import arr_coc  # noqa: F401  # before torch: it sets how threads of OpenMP wait
