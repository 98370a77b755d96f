"""Answers: client and server of the answer stage. One request of a client is in flight; clients take turns."""
