"""What conformance run, benchmark, tests and tools/gpu share; it needs NumPy alone.

formula_models.py           the models: right answer, error bound, inputs, evidence
batch_norm_grad.py          first order, with oracle.py and bounds.py
batch_norm_grad_grad.py     second order
generic_model.py            any other op of TensorFlow; tolerances.py: of a mapping file
inputs.py, problems.py      kinds of inputs; inputs as tensors, and as views
measure.py, sums.py         errors against the bound, evidence; compensated sums
c_abi.py                    the C ABI through ctypes: the only place with its structs
processes.py, command.py    modules in processes of their own; what the commands have in common
machine.py                  where a run takes place
"""
