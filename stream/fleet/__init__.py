"""Several cameras in one command: each a supervised run with its own frame process, one answer process for all."""
