"""
Old events in files that prove themselves, and what the ledger still knows of them.

The file comes first; a row goes only when it was read back from there and proved.
"""
