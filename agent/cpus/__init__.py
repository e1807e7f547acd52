"""
CPUs of containers as kernel and runtime have them: the kubepods tree, and nothing above it.

May not decide: what is to be written is `agent.decide`'s.
"""
