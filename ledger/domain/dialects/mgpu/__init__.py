"""Volcano Engine's mGPU: shares of cards container by container. Knows no other dialect."""
