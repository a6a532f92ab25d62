"""Measures the ops against TensorFlow's, other libraries and memory bandwidth.

bench_command.py  the command
bench_rows.py     rows: layers of networks, series for scaling
data.py           inputs that every process generates bitwise identically
implementations/  how each library is called, in a process of its own
execution/        those processes, rounds over them, verification, memory, whole networks
results.py        a run as data, and its JSON file
stats.py          medians, percentiles, means
reports/          tables and plots of a run; the recorded run in README.md and docs/
against.py        two builds of the core library, in adjacent pairs
"""
