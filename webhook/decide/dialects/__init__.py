"""
The ways to ask for GPUs, as admission sees them: the rules of each, its labels, its near misses.

`protocol` says what a dialect may bring, `registry` lists those that there are. It does no I/O.
"""
