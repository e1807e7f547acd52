"""Aliyun's GPU share: memory of one card for the whole Pod. Knows no other dialect."""
