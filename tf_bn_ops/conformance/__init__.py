"""The conformance run: judges ops against TensorFlow and an oracle (docs/conformance.md).

  conformance_command.py, flags.py   the command
  export_command.py                  cases as files, for systems that are not TensorFlow
  shrink.py, program.py              a failing case made small, as a program of its own
  runner.py                          runs and judges cases
  reports/                           what a run leaves behind
  verdict/                           values and errors against what is expected
  execution/                         candidate and references, in processes of their own
  cases/                             what is run
  models/                            per formula: right answer, error bound, inputs

Imports go down this list, and from there to tf_bn_ops/harness and tf_bn_ops/spec. Only the worker
processes import TensorFlow.
"""
