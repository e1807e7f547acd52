"""
HAMi: shares of NVIDIA cards by `nvidia.com/gpumem` and the like.

Formats and facts: docs/contracts/hami.md. Nothing of HAMi's is written, only read.
"""
