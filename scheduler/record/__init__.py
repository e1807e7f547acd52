"""
Decisions as they are recorded: each act as an event, and groups as their events make them.

Pure: what is decided comes from `scheduler.decide`, when it happens comes in as an argument.
"""
