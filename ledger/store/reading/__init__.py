"""
What others read: events in order, the feed, the folded state at any time, and the questions.

Nothing here writes but `snapshots`, whose rows are proved before anyone believes them.
"""
