"""
Acts on a ledger, a module each: make it, prove it, archive it, mend it.

An act is worked out and recorded in `ledger.store`; here are its options and its words.
"""
