"""
The ledger: the shared vocabulary and the event log that is written in it.

It may not import the webhook, the scheduler, the agent, the certificates or the command line, and
may not decide anything: it records what was decided and refuses what cannot be true.
"""
