"""Training of the bundled model, and of allocators."""

import arr_coc  # noqa: F401  # before torch: it sets how threads of OpenMP wait
