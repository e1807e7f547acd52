"""
Admission without a cluster: files in, what both webhooks would answer out.

It decides nothing itself: defaults and the API server's rules are Kubernetes', the rest is
`webhook.decide`. Nothing is written.
"""
