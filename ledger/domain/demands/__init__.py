"""
What a Pod asks of its devices, one module per dialect: a read Pod in, demands or violations out.

Nothing here knows a node, a card or an annotation's JSON, and nothing raises over a broken rule:
violations are values, so that a Pod is refused with all of them at once.
"""
