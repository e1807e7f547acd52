"""
What was held of a cluster: at one moment, and over time, out of a ledger's rows or of objects.

It reads no ledger itself, and draws nothing.
"""
