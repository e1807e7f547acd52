"""
Acts of somebody over a ledger that is wrong or behind: events too, never a change of one.

Each act has the readers of what it recorded beside it.
"""
