"""
The pure decisions: values in, an answer with its reason out.

Nothing in here reads a clock, a file, a database or the network, logs, or draws a random number;
seeds come in as arguments. Only numpy and `ledger.domain` are imported.
"""
