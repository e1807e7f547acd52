"""
What admission decides: a request, settings and facts in, an answer with its reasons out.

Nothing in here does I/O, logs, reads a clock or the environment, or knows HTTP, YAML or pydantic;
only the standard library and `ledger.domain` are imported.
"""
