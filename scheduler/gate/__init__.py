"""
The gate before every ResourceClaim's allocation: a write of its status in, an answer out.

Pure: what is held and what devices there are comes in as values; nothing in here waits or records.
"""
