"""
What would happen if: changes, ends and moves that would make a Pod fit, each really decided.

Pure, on a copy of the cluster; nothing here acts. Every bound that ended a search is in its answer.
"""
