"""The conformance harness: judges batch-norm gradient ops against TensorFlow and an oracle.

docs/conformance.md is its guide. In the order of a run:

  case.py               what is run: a case is a short string
  cases.py, shapes.py   cases from their strings, and from a seed
  fills.py, views.py    the numbers of a case, and how every layout is seen
  real_input.py         numbers captured from a network in training
  calls.py              further ways to call, whose bits must be the same
  contract.py           cases that ask for errors and static shapes (judge_contract.py: verdict)
  workers.py, worker.py candidate and references, each in a process of its own
  autodiff.py           the reference that TensorFlow differentiates
  mapping.py            ops of other libraries: names and signatures
  tolerances.py         what they may be off, each time with a reason
  devices.py            where they run
  general*.py           ops that are not batch norm
  oracle.py             the right answer, in float64 or better
  bounds.py             how far from it an answer may be
  second_order.py       both for the gradient of the gradient, which the tests judge
  judge.py              verdict, errors and evidence of a case
  divergences.py        where TensorFlow is known to disagree with the ops' contract
  runner.py, speed.py   the run, and how fast it went
  reports/              what it leaves behind: what is printed, JSON, JUnit XML, a page
  shrink.py, script.py  a failing case made small, as a program of its own
  cli.py                flags

Importing it imports no TensorFlow: only the worker processes do.
"""
