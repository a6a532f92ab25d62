"""What conformance run, benchmark, commands, tests and tools/gpu share; it needs NumPy alone.

problems.py                 inputs as tensors, and as views
c_abi.py    the C ABI through ctypes
processes.py, machine.py    modules in processes of their own; where a run takes place
builtin.py  whether a process runs TensorFlow's kernels
"""
