"""
What a Pod is turned into before it is checked: one module a concern, `pod` puts them in order.

They build a new object and never touch the one they were given. Doing it twice changes nothing.
"""
