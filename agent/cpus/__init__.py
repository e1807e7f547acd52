"""
CPUs of containers as the kernel has them: the kubepods tree read and written, and nothing above it.

May not decide: what is to be written is `agent.decide`'s.
"""
