"""
What the API server is told of us in CEL: policies, and for which requests webhooks are called.

It may not read a file, call an API, or spell a resource, label or annotation by itself.
"""
