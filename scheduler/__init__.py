"""
The scheduler: which node, which cards and which CPUs a Pod gets.

It may not contain SQL, and may not import the webhook, the agent or the command line. Deciding is
pure and lives in `decide` and `whatif`, what becomes of it as events in `record`; whatever touches
the network, the clock or the ledger stays outside them.
"""
