"""
Questions to a ledger: who held what, why a Pod waits, what was used, and where the head stands.

Nothing here writes; what the rows of a ledger mean is said by its views, and is not counted again.
"""
