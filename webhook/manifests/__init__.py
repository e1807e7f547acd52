"""
What the API server is told of us: webhook configurations, policies and rights, as plain objects.

It may not read a file, call an API, or spell a resource, label or annotation by itself.
"""
