"""What conformance run, benchmark, tests and tools/gpu share; it needs NumPy alone.

processes.py, command.py    modules in processes of their own; what the commands have in common
machine.py                  where a run takes place
c_abi.py                    the C ABI through ctypes: the only place with its structs
oracle.py, bounds.py        first-order gradient: the right answer and its error bound
batch_norm_grad_grad.py     both for the second-order gradient
"""
