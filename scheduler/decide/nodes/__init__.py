"""
The cluster as arrays, one row per node: what each has, who holds it, and what is free.

The only state that deciding changes, one node at a time.
"""
