"""Runs cases of the default conformance run on the core library that TF_BN_OPS_LIBRARY names.

usage: python judge_build.py COUNT [KIND ...] [masked]

Prints a JSON object: a digest of all outputs (NaN is NaN, whatever its payload), and for every
output the worst error in units of its strict bound, also of outputs that have to be exact. Cases of
the kinds that are named are left out; `masked`, gradients behind an activation.
"""

from __future__ import annotations

import collections
import hashlib
import json
import sys

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.conformance.cases import generate
from tf_bn_ops.conformance.flags import DEFAULT_SEED
from tf_bn_ops.conformance.models import formula_models
from tf_bn_ops.harness import c_abi, problems


def main() -> None:
    count, left_out = int(sys.argv[1]), set(sys.argv[2:])
    digest, worst = hashlib.sha256(), collections.defaultdict(float)
    # One op of each formula, in most types; the C ABI knows no more of ops.
    for formula in dict.fromkeys(op.formula for op in spec.OPS.values()):
        ops = [op.name for op in spec.of_formula(formula)][-2:]
        for case in generate.generate(count, DEFAULT_SEED, generate.combinations(ops)):
            if np.prod(case.shape) > 100_000 or case.kind in left_out:
                continue
            inputs = formula_models.fill(case)
            problem = problems.of_call(case, inputs)
            is_masked = "y_backprop" in problem.values and problem.activation != problems.IDENTITY
            if is_masked and "masked" in left_out:
                continue
            outputs = c_abi.run(problem, threads=2)
            for role in sorted(outputs):
                array = outputs[role]
                digest.update(np.where(np.isnan(array), np.zeros_like(array), array).tobytes())
                digest.update(np.isnan(array).tobytes())
            errors = formula_models.errors(problem, outputs)
            for role, error in errors.items():
                worst[role] = max(worst[role], error.bound)
    print(json.dumps({"digest": digest.hexdigest(), "worst": worst}))


if __name__ == "__main__":
    main()
