"""
Where a question goes: to a ledger that this process opens, or to a service that runs.

May not answer one. An order goes to the service alone.
"""
