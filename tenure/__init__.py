"""
The command line and the composition roots: the only package that imports all the others.

It may not hold a rule of the domain, spell a resource or annotation name, or contain SQL. It is
the one place that reads the environment, the clock and randomness; they are passed on as
`settings`, `clock`, `rng` and `new_id`. A command imports what it needs when it runs, so that
`tenure --help` stays instant.
"""
