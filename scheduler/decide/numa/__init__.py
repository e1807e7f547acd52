"""
NUMA alignment on one node: which NUMA nodes a Pod's CPUs, memory and devices come from.

Pure Python: imports the standard library, `ledger.domain` and its siblings only. May not read a
clock, a file or another node. A set of NUMA nodes is a mask: bit n is the NUMA node n.
"""
