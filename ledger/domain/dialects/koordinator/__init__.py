"""Koordinator's keys: shares of one or several cards for the whole Pod. Knows no other dialect."""
