"""
What makes a record provable: canonical bytes, the hash chain over events, the Merkle tree.

Hashes and lists of them; nothing here knows what an event says.
"""
