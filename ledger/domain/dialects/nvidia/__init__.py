"""Whole cards of a vendor's device plugin. Knows no other dialect."""
