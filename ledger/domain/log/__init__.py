"""
Events: their words, their bytes, and the state that they fold to.

An event is never changed once it is recorded; whoever reads one again sees what was written.
"""
