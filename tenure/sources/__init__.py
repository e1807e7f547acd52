"""
Text files that hold YAML or JSON: read whole, parsed safely, able to say where a field stands.

It knows files and lines, not what the documents mean. What Kubernetes' own YAML reader would hand
on is what comes out: JSON values. Traps are errors with a line: a key that stands twice, a key
that is no text, a nest or an alias without end.
"""
