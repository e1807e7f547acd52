"""
Card choice on one node, one module per dialect behind one function.

Pure Python over at most 16 cards: imports the standard library, `ledger.domain` and its sibling
values only. May not read a clock, a file or another node.
"""
