"""Measures the ops against TensorFlow's, other libraries and the speed of memory.

shapes.py           what is measured: layers of networks, series for scaling
data.py             inputs that every process makes for itself, bit for bit the same
implementations.py  how each library is called (in a process of its own)
worker.py           that process; workers.py: the other end
measure.py          rounds over all implementations, row by row
verify.py           results against float64
memory.py           peak extra memory of one call
results.py          the JSON file and the summary
machine.py stats.py  where it was run; medians and spreads
report.py plots.py docs.py   what is made of it
"""
