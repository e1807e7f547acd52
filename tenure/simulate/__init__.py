"""
The run of a simulation: inputs become a `Run`, a loop decides it, a recorder writes the ledger.

It may not hold a rule of deciding (that is `scheduler.decide`), spell a resource or annotation
name, or contain SQL. Only the command that calls it reads the clock; here time is an argument.
"""
