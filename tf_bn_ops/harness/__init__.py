"""What conformance run, benchmark, tests and tools/gpu share; it needs NumPy alone.

models/                     per formula: right answer, error bound, inputs, evidence
oracle.py, bounds.py        first order: the right answer, how far from it an answer may be
inputs.py, problems.py      kinds of inputs; inputs as tensors, and as views
measure.py, sums.py         errors against the bound, evidence; compensated sums
c_abi.py, split_c_abi.py    the C ABI through ctypes: the only places with its structs
poison.py                   memory in which unwritten elements show
processes.py, machine.py    modules in processes of their own; where a run takes place

Imports go from models to the modules beside it, never back.
"""
