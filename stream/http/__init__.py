"""HTTP servers of this program: one guard of their connections, and the server of ASGI applications."""
