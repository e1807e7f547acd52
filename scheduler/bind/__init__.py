"""
Binding: how a decision becomes a Pod's node and a holding of the ledger, whatever fails between.

Pure: what is to be done comes out as a value, what came of it goes in as one.
"""
