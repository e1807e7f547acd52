"""
What a Pod asks for: the dialects' demands, the rules over them, and the one request they become.

Nothing here knows a node, a card or an annotation's JSON, and nothing raises over a broken rule:
violations are values, so that a Pod is refused with all of them at once.
"""
