"""
The live scheduler behind ports: what the API and the ledger tell, and what is answered and bound.

What touches a socket, a clock or a database is handed in (`ports`); the composition root is
`tenure/serving`.
"""
