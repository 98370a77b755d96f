"""Several cameras in one command: each a supervised run with a frame process of its own, one answer process for all."""
