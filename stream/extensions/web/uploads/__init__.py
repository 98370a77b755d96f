"""Pictures that viewers send: limits, decoding in a separate process, and the store of those that are kept."""
