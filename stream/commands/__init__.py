"""Commands. Each imports the parts of the program only when it runs."""
