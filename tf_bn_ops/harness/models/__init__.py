"""The models of all formulas: right answer, error bound, inputs, evidence.

formula_models.py           the list of them, and what a model is
batch_norm.py               batch normalization itself, with and without side input
batch_norm_inputs.py        and the inputs that it draws
batch_norm_grad.py          first order, with oracle.py and bounds.py of the folder above
batch_norm_grad_ex.py       the gradient behind an activation
batch_norm_grad_ex_inputs.py and the inputs that it draws
batch_norm_grad_grad.py     second order
split_ops.py                the parts of synchronised batch normalization
split_ops_inputs.py         and the inputs that they draw
gather_stats.py             statistics of several replicas, bit by bit
"""
