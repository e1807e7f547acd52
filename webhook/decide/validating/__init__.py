"""
What is refused and what is warned about: free functions that yield every violation of one concern.

Rules about what a Pod asks for live in `ledger.domain`, where simulation and the scheduler keep
them too; here are those about what may be done to objects, and by whom.
"""
