"""
The HTTP side of admission: bytes to requests, decisions to bytes, and what is counted on the way.

It may not decide anything about an object, open a database, or answer 200 to a request that could
not be read.
"""
