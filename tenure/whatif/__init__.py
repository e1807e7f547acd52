"""
What would happen if: the options and the words of it; it is worked out in `scheduler.whatif`.

Nothing here acts.
"""
