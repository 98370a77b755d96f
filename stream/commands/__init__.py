"""The commands: each module one command, importing what it runs only when it runs."""
