"""
What this machine has: cards, NICs and other devices, behind one port (`machine.Probe`).

It only looks: it may not write to a device or to the cluster, follow a link out of the root that it
was given, or guess what it could not read. What could not be read is named in the answer.
"""
