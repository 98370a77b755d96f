"""Several clients' answers prefilled and decoded together."""
