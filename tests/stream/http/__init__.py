"""Tests of the guard of HTTP servers, and of the server of ASGI applications."""
