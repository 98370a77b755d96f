"""Model Context Protocol server: tools with which an agent sees and asks running cameras."""
