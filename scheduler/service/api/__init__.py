"""
What people, agents and webhooks ask of the live service: who calls, and what they may see.

May not open a socket, import `tenure`, or write: what it answers with is handed in.
"""
