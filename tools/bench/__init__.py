"""The benchmark: the ops against TensorFlow's, PyTorch's and memory bandwidth (`make bench`).

bench_command.py    the command
rows.py             rows: layers of networks, and small ones; their inputs
libraries.py        how each library is called; memory bandwidth (tools/memory_bandwidth.cc)
bench_worker.py     the process of one implementation
networks.py         the process that trains whole networks
pairs.py            programs of their own: networks with folded norms, instance norm beside Keras'
rounds.py           rounds over all implementations, and the bandwidth limit
output_check.py     the check of every result after timing
results.py          a run as data, and its JSON file
report.py           tables and sentences of a run; the recorded run in README.md and docs/
against.py          two builds of the core library in adjacent pairs (`make bench-against`)
"""
