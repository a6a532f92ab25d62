"""Measures the ops against TensorFlow's, other libraries and memory bandwidth.

cli.py              the command
shapes.py           rows: layers of networks, series for scaling
data.py             inputs that every process generates bitwise identically
implementations.py  how each library is called, in a process of its own
worker.py           that process; workers.py: its client
measure.py          rounds over all implementations, row by row
verify.py           results against float64
memory.py           peak extra memory of one call
results.py          a run as data, and its JSON file
stats.py            medians, percentiles, means
report.py plots.py  tables and plots of a run
docs.py             the recorded run in README.md and docs/
against.py          two builds of the core library, in adjacent pairs
"""
