"""Pods that belong together: a plan for all members at once, and what keeps or ends it."""
