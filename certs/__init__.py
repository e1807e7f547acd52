"""
Certificates: when to rotate, how to issue, where to publish.

It may not know of GPUs, Pods or the ledger, import another package of the tree, or let a private
key leave the Secret it is kept in. When to rotate is decided purely from times that are passed in.
"""
