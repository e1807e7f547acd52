"""
The questions to a ledger: who, why, usage, verify, status, and what is shown of it.

Opens a ledger read-only through `ledger.store` and prints the answer; holds no rule of the domain
and spells no SQL.
"""
