"""
The rooms of `tenure serve scheduler`: what it is given, what it follows, records and answers.

No rule in here: what is decided, and when, is said by `scheduler.service`.
"""
