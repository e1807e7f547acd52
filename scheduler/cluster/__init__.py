"""The cluster that deciding is about, out of what objects or a ledger's events say of it."""
