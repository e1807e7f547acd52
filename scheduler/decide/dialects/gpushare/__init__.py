"""Aliyun GPU share: the whole Pod on one card, by memory. Does no I/O."""
