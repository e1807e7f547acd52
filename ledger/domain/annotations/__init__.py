"""
The wire text of labels and annotations, one module per family: text in, values out, and back.

Each key has a `decode_x`/`encode_x` pair, or a `read_x` where several keys belong together. Nothing
here decides anything, reads a clock or knows a Kubernetes object beyond its labels and annotations.
"""
