"""How implementations are run: each in a process of its own, one at a time.

timing_process.py  the process of one implementation; timing_workers.py: its client
timing_rounds.py   rounds over all implementations, row by row
verify.py          results against float64
kernel_time.py     time inside the kernels of the small rows, beside the eager call
memory.py          peak extra memory of one call
networks.py        step times of whole networks
"""
