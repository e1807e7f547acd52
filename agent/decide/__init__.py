"""
What a node should be made to look like, worked out of what the ledger promised and what runs.

Pure: imports the standard library and `ledger.domain` only. Applying it is somebody else's.
"""
