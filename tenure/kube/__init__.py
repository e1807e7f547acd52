"""
The Kubernetes API: objects as raw JSON, and the Lease that says who leads.

It may not know what the objects mean or decide anything from them. Every call has a time limit, and
nothing is retried here: whoever asked knows whether asking again is safe.
"""
