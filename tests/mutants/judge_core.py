"""Judges the core library that TF_BN_OPS_LIBRARY names by the cases of the default conformance run.

usage: python judge_core.py [MOST]

Prints the number of cases passed so far, a line each time; when one fails, its number, its name and
the reason, and ends. run.py reads the last line.
"""

from __future__ import annotations

import sys

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance import cases, cli, fills
from tf_bn_ops.conformance.case import Case
from tf_bn_ops.conformance.judge import Answer, judge
from tf_bn_ops.harness import bounds, c_abi

_THREADS = 2


def answer(case: Case, filled: fills.Filled) -> Answer:
    """What an op on this library would answer; outputs start as NaN, so none may be left out."""
    values = filled.values
    x = spec.as_view(values["x"], case.layout)
    nan = np.full_like(x, np.nan)
    scale, offset = (np.full_like(values["scale"], np.nan) for _ in range(2))
    problem = c_abi.Problem(
        spec.as_view(values["y_backprop"], case.layout), x,
        values["scale"], values["mean"], values["variance"],
        case.kernel_epsilon, case.is_training,
    )  # fmt: skip
    c_abi.run(
        problem, threads=_THREADS, x_backprop=nan,
        scale_backprop=scale.ctypes.data, offset_backprop=offset.ctypes.data,
    )  # fmt: skip
    by_role = {
        "x_backprop": nan.reshape(case.shape),
        "scale_backprop": scale,
        "offset_backprop": offset,
        "placeholder": np.zeros(0, scale.dtype),
    }
    return Answer([by_role[arg.role] for arg in case.spec.outputs])


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else cli.DEFAULT_CASES
    for number, case in enumerate(cases.generate(most, cli.DEFAULT_SEED), start=1):
        filled = fills.fill(case)
        answers = {"candidate": answer(case, filled)}
        failures = judge(case, filled, answers, bounds.PROFILES["strict"]).failures
        if failures:
            print(f"{number} {case}: {failures[0]}", flush=True)
            return
        print(number, flush=True)


if __name__ == "__main__":
    main()
