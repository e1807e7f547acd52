"""
Kubelet as a node's agent asks it: the Pods of this node, without a right to list any in the API.

May not write: what kubelet keeps is its own.
"""
