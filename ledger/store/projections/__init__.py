"""
Events to rows: what each event changes in the tables, and all of them made anew from the log.

The same events give the same rows, byte for byte.
"""
