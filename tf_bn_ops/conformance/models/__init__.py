"""The models of all formulas: right answer, error bound, inputs, evidence; they need NumPy alone.

formula_models.py           the list of them
batch_norm.py               batch normalization itself, with and without side input
batch_norm_inputs.py        and the inputs that it draws
batch_norm_grad.py          first order
oracle.py, bounds.py        and its right answer; how far from it an answer may be
inputs.py                   kinds of inputs
measure.py, sums.py         what a model is; errors against the bound, evidence; compensated sums
portable_judge.py           what is wrong, alone: exported cases have it beside them
smooth.py                   smooth activations: how far off value and derivative may be
batch_norm_grad_ex.py       the gradient behind an activation
batch_norm_grad_ex_inputs.py and the inputs that it draws
batch_norm_grad_grad.py     second order
split_ops.py                the parts of synchronised batch normalization
split_ops_inputs.py         and the inputs that they draw
gather_stats.py             statistics of several replicas, bit by bit
"""
