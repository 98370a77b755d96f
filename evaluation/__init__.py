"""Evaluation of a model that is shown fewer visual tokens: its answers, and their cost."""

import arr_coc  # noqa: F401  # before torch: it sets how threads of OpenMP wait
