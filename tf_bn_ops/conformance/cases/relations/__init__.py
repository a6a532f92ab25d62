"""Relations: what several answers of one op have to do with each other, whoever computes them.

No oracle takes part: a relation needs the candidate alone, and finds a wrong formula that an oracle
shares. A case whose kind is "relation/NAME" is a base call, inputs drawn as those of the kind
"normal", and others that follow from it. How far a relation may be off comes from the error bounds
of the calls, which depend on the magnitudes of their inputs; the right answer is never looked at.

relation.py        what a relation is, and what all of them read
linear.py          the outputs are linear in some inputs: powers of two, sums
arrangement.py     channels, batch and layout may be arranged otherwise
differences.py     the forward formula in float64, and finite differences of it
table.py           RELATIONS, and the cases of a run
"""
