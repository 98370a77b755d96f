"""The past of cameras in an SQLite file: answers, matches, outages and small pictures; search and recap."""
