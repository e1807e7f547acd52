"""
What the cluster is told of this machine: its Device object, and what its Node offers.

It writes to these two objects of its own node alone, only where they say something else, and to no
field that another field manager keeps. What to write is decided purely (`device`, `offers`,
`settle`); `reporter` carries it out.
"""
