"""
The ledger in a database: the only package of the tree that contains SQL.

It may not update or delete an event, know a scheduling policy, or let a difference between two
databases reach its callers.
"""
