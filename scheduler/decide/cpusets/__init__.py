"""
CPU sets on one machine: which logical CPUs a Pod gets, over bit masks.

Pure Python: imports the standard library, `ledger.domain` and its siblings only. May not read a
clock, a file or another node.
"""
