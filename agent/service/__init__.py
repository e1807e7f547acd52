"""
The service as a node's agent knows it: asked, followed, and told what the node confirms.

May not choose a device, and may not believe more than docs/contracts/agents.md says.
"""
