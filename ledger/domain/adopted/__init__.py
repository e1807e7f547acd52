"""
Pods that run already: what their own words say they hold, one module per source of words.

What can't be read or believed is said, and closes what it may concern; nothing is guessed.
"""
