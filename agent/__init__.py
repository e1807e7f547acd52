"""
The node agent: what the node really has and runs, and what the ledger promised on it.

It may not open the ledger's database, decide a placement, write to any object but its own node's,
or stop a running container. What to do is planned purely from the desired and the observed state.
"""
