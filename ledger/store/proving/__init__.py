"""
Does the ledger prove itself: every hash, every projection, the tree, its keys and its rules.

Nothing here trusts what it proves, and nothing writes.
"""
