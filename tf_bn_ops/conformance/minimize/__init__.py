"""A failing case made small (shrink.py), as a program of its own (program.py)."""
