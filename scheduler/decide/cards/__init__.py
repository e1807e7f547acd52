"""
Card choice on one node, whatever dialect asked; what a dialect has of its own is in `dialects`.

Pure Python over at most 16 cards: imports the standard library, `ledger.domain` and its sibling
values only. May not read a clock, a file or another node.
"""
