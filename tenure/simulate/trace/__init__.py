"""
Traces: made from published shape statistics, written to and read from a directory.

Nothing in here decides or records. A generated trace is a function of its profile, size and seed.
"""
