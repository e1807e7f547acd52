"""Which nodes can take a Pod: predicates and room over all nodes at once, then a closer look."""
