"""Pictures that viewers send: limits, decoding in a process apart, and the store of those that are kept."""
