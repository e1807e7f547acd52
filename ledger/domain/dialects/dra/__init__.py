"""
Dynamic resource allocation: slices, claims and classes as values, and whose accounts they are.

A claim is a holder and no Pod's request: nothing in here is asked while a Pod is placed.
"""
