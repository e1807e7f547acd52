"""Volcano mGPU: containers on cards by a bounded search, and its say in nodes. Does no I/O."""
