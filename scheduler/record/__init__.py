"""
A scheduler at its core, and its decisions as they are recorded: acts as events, groups by events.

Pure: what is decided comes from `scheduler.decide`, when it happens comes in as an argument.
"""
