"""What is run: cases, their strings, and the inputs that are not drawn by a formula model.

case.py          a case and its string
generate.py      cases from their strings, and drawn from a seed; shapes.py: their shapes
coverage.py      which properties of cases came together
contract.py      cases of malformed calls; execution_modes.py: how a case is executed
mapping.py       ops of other libraries
foreign_shapes.py    shapes that other libraries failed on
"""
