"""
Kubernetes objects in: Pods, Nodes, Devices and NodeResourceTopologies, read strictly.

The wire text of their labels and annotations is read in `ledger.domain.annotations`.
"""
