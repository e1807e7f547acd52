"""
Which of the nodes that can take a Pod should: node policies, and the rows they keep per shape.

Scores are exact integers; ties go to node order.
"""
