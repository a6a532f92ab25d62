"""How ops are run: in processes of their own, each case in one or more execution modes.

answer.py            what comes back
worker.py            the process
signatures.py        the contract of another library's ops; static_shapes.py: shape functions
workers.py           starts processes, sends them cases, and restarts them when they die
implementations.py   candidate and references
devices.py           where ops are placed
stateful.py          modes that look for state between calls
"""
